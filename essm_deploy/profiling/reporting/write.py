"""Writing reports: the suffix of a path decides what it becomes."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from essm_deploy.errors import OutputError, UsageError
from essm_deploy.files import write_bytes, write_text
from essm_deploy.profiling.reporting.document import Run
from essm_deploy.profiling.reporting.html import html_page
from essm_deploy.profiling.reporting.markdown import markdown
from essm_deploy.profiling.reporting.markup import Markup, element
from essm_deploy.profiling.reporting.png import png, require_matplotlib
from essm_deploy.profiling.reporting.reading import runs_of

SUFFIXES = (".html", ".md", ".png", ".json")
_PRIVATE = ("observations", "bundle", "host")
"""What names a place on the machine that wrote a document, or the device that it reached."""

_DECIMALS = 4  # of a millisecond: a tenth of a microsecond is below what any clock here resolves
_MOST_EMBEDDED = 2**23


def check_reports(paths: Sequence[Path]) -> None:
    """Whatever would keep `write_reports` from writing, said before anything is measured.

    Raises UsageError for another suffix, OutputError for a place that cannot be written, and UnavailableError where a .png
    is asked for and matplotlib is not installed.
    """
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: the suffix decides what a report becomes; expected {', '.join(SUFFIXES)}")
        if path.is_dir():
            raise OutputError(f"{path}: is a directory; name a file for the report")
        if not path.parent.is_dir():
            raise OutputError(f"{path.parent}: not a directory; make it, or write the report elsewhere")
    if any(path.suffix.lower() == ".png" for path in paths):
        require_matplotlib()


def write_reports(document: Mapping[str, Any], paths: Sequence[Path], source: Path | None = None) -> None:
    """Write a document of `profile` or `build` to every path; `source` is the file that it was read from, if it was.

    A page links to the .json among `paths`, or to `source`, or carries the samples itself. Raises what `check_reports` does,
    and UsageError for a document that is none.
    """
    check_reports(paths)
    if source is not None and any(path.resolve() == source.resolve() for path in paths):
        raise OutputError(f"{source}: is the document itself; write the report to another file")
    runs = runs_of(document, str(source or "the document"))
    beside = next((path for path in paths if path.suffix.lower() == ".json"), source)
    picture = next((path for path in paths if path.suffix.lower() == ".png"), None)
    for path in paths:
        _write(document, runs, path, beside, picture)


def shareable(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without paths and names of machines, and with samples to a tenth of a microsecond."""
    return {key: _shared(key, value) for key, value in document.items() if key not in _PRIVATE}


def compact(value: Any, indent: str = "") -> str:
    """JSON with two spaces of indentation, and lists of numbers on one line."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        entries = [f"{inner}{json.dumps(str(key))}: {compact(content, inner)}" for key, content in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(content, (Mapping, list, str)) for content in value):
        return "[\n" + ",\n".join(inner + compact(content, inner) for content in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _write(document: Mapping[str, Any], runs: Sequence[Run], path: Path, beside: Path | None, picture: Path | None) -> None:
    suffix = path.suffix.lower()
    if suffix == ".html":
        write_text(path, html_page(runs, _link(document, path, beside)))
    elif suffix == ".md":
        place = f"[{beside.name}]({_address(path, beside)})" if beside else "in the JSON document (`--report NAME.json`)"
        write_text(path, markdown(runs, place, _address(path, picture) if picture else None))
    elif suffix == ".png":
        write_bytes(path, png(runs))
    else:
        write_text(path, compact(shareable(document)) + "\n")


def _link(document: Mapping[str, Any], page: Path, beside: Path | None) -> Markup:
    """Where the samples are: in a file beside the page, or in the page, as a download without script or network."""
    if beside is not None:
        return element("a", beside.name, href=_address(page, beside))
    content = json.dumps(shareable(document), allow_nan=False).encode("ascii")
    if len(content) > _MOST_EMBEDDED:
        return Markup(f"left out, {len(content) // 2**20} MiB of them; write a .json report beside this one")
    address = f"data:application/json;base64,{base64.b64encode(content).decode('ascii')}"
    return element("a", f"{page.stem}.json, in this page", href=address, download=f"{page.stem}.json")


def _address(page: Path, other: Path) -> str:
    """Relative: it stays right when the folder moves, and names nothing of this machine."""
    return quote(Path(os.path.relpath(other.resolve(), page.resolve().parent)).as_posix())


def _shared(key: str, value: Any) -> Any:
    if key in ("samples", "back_to_back_samples") and isinstance(value, list):
        return [round(v, _DECIMALS) if isinstance(v, float) else v for v in value]
    if isinstance(value, Mapping):
        return shareable(value)
    return [_shared("", inner) for inner in value] if isinstance(value, list) else value
