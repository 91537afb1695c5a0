"""Reading a document that somebody else may have written: it is checked before a word of it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from essm_deploy.errors import UsageError
from essm_deploy.profiling.reporting.document import Run, clean
from essm_deploy.runtime.strict import parse_json
from essm_deploy.schema import parse, read_bounded

SCHEMA_VERSION = "1.0"
_MOST_BYTES = 2**28
_MOST_RUNS = 256
_DEEPEST = 20


def load(path: Path) -> dict[str, Any]:
    """The JSON of a file, as it is; UsageError unless it is one JSON object of at most 256 MiB."""
    content = read_bounded(path, _MOST_BYTES, "a document of `profile --format json`", UsageError)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text; expected a document of `profile --format json`") from None
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object; expected a document of `profile --format json`")
    return value


def runs_of(raw: Mapping[str, Any], where: str) -> list[Run]:
    """The runs of a document, one or several; UsageError names the key that is wrong."""
    _check_version(raw, where)
    _check_depth(raw, where)
    if "runs" not in raw:
        return [_run(raw, where)]
    listed = raw["runs"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_RUNS:
        raise UsageError(f"{where}: runs must be a list of 1 to {_MOST_RUNS} documents")
    return [_run(run, f"{where}: runs.{index}") for index, run in enumerate(listed)]


def _run(raw: Any, where: str) -> Run:
    if not isinstance(raw, Mapping):
        raise UsageError(f"{where}: not a JSON object; expected a document of `profile`")
    _check_version(raw, where)
    run = parse(Run, dict(raw), where, UsageError)
    for problem in _contradictions(run):
        raise UsageError(f"{where}: {problem}; expected a document of `profile --format json`")
    return run


def _contradictions(run: Run) -> Iterator[str]:
    counts = Counter(row.budget for row in run.candidates)
    if not counts and run.status != "failed":
        yield "there are no candidates"
    if run.budget is not None and run.budget not in counts:
        yield f"budget {run.budget} was chosen and is not among the candidates"
    for budget, count in counts.items():
        if count > 1:
            yield f"budget {budget} occurs {count} times among the candidates"


def _check_version(raw: Mapping[str, Any], where: str) -> None:
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        read = "missing" if version is None else f"{clean(str(version))[:40]!r}"
        raise UsageError(
            f"{where}: schema_version is {read}; expected {SCHEMA_VERSION!r}, a document of `profile --format json`"
        )


def _check_depth(raw: Any, where: str) -> None:
    """A document is about six deep; what is nested without end would exhaust the stack of whoever walks it."""
    level = [raw]
    for _ in range(_DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise UsageError(f"{where}: nested more than {_DEEPEST} deep; expected a document of `profile --format json`")


def _inside(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inner if isinstance(item, (dict, list))]
