"""The report as Markdown (GitHub's, for its tables): the words and the table of the page, without charts of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from essm_deploy import __version__
from essm_deploy.profiling.reporting import words
from essm_deploy.profiling.reporting.document import Run
from essm_deploy.profiling.reporting.table import columns_of

_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~!]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")


def markdown(runs: Sequence[Run], samples: str, picture: str | None = None) -> str:
    """The whole text. `samples` is Markdown that leads to the raw samples, `picture` the address of a chart."""
    parts = [part for index, run in enumerate(runs) for part in _run(run, picture if index == 0 else None)]
    quality = "Quality was measured in training; its shares are of the full budget's."
    end = f"Raw samples: {samples}. {quality} Written by essm-deploy {__version__}."
    return "\n\n".join([*parts, end]) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))


def _run(run: Run, picture: str | None) -> list[str]:
    parts = [
        f"# {escaped(words.full_title(run))}",
        f"**{escaped(words.headline(run))}**",
        escaped(words.question_words(run)),
        *([escaped(words.busy_words(run))] if words.busy_words(run) else []),
        *([f"![Latency, memory and quality by budget]({picture})"] if picture else []),
        *(_figures(run) if run.candidates else []),
    ]
    for name, pairs in words.environment_of(run):
        parts += [f"## {name}", "\n".join(f"- {escaped(key)}: {escaped(text)}" for key, text in pairs)]
    return parts


def _figures(run: Run) -> list[str]:
    parts = [_items(words.key_facts(run)), "## Every budget", _table(run)]
    found = words.warnings_of(run)
    if found:
        parts += ["## Warnings", "\n".join(f"- **{escaped(name)}** {escaped(text)}" for name, text in found)]
    return parts


def _items(facts: Sequence[words.Fact]) -> str:
    said = {name: ". ".join(line.rstrip(".") for line in lines) for name, _, lines in facts}
    return "\n".join(f"- {escaped(name)}: **{escaped(value)}**. {escaped(said[name])}." for name, value, _ in facts)


def _table(run: Run) -> str:
    columns = columns_of(run)
    names = [column.name + _unit(column.group) for column in columns]
    lines = [_line(names), _line(["--:" if column.figures else "---" for column in columns], raw=True)]
    lines += [_line([column.cells[index] for column in columns]) for index in range(len(run.candidates))]
    bases = dict.fromkeys(column.group for column in columns if column.group)
    return "\n".join([*lines, "", escaped("; ".join(bases) + ".")])


def _unit(group: str) -> str:
    """ ", ms" of "Latency, ms (measured)"."""
    found = re.match(r"\w+(, \S+) \(", group)
    return found[1] if found else ""


def _line(cells: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else escaped(cell) for cell in cells) + " |"
