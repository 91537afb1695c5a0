"""The page: one file that opens from disk, asks the network for nothing and runs no script.

It says so itself: its content security policy allows its own style and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from essm_deploy import __version__
from essm_deploy.profiling.reporting import words
from essm_deploy.profiling.reporting.chart import Panel
from essm_deploy.profiling.reporting.document import Run
from essm_deploy.profiling.reporting.marks import named
from essm_deploy.profiling.reporting.markup import Markup, element, join
from essm_deploy.profiling.reporting.panels import panels_of
from essm_deploy.profiling.reporting.svg import draw
from essm_deploy.profiling.reporting.table import Column, columns_of
from essm_deploy.profiling.reporting.trace import traces

_STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def html_page(runs: Sequence[Run], samples: Markup) -> str:
    """The whole page for the runs of one document; `samples` is the link to the raw samples."""
    title = words.common_title(runs)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · essm-deploy"),
        element("style", Markup(_STYLE)),
    )
    several = [_overview(runs)] if len(runs) > 1 else []
    sections = [_section(run, f"run-{index}", alone=len(runs) == 1) for index, run in enumerate(runs)]
    body = element("main", _header(title, runs), *several, *sections, _samples(samples), _footer())
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _header(title: str, runs: Sequence[Run]) -> Markup:
    parts = [element("p", "essm-deploy profile", class_="kicker"), element("h1", title)]
    return element("header", *parts, *([_answer(runs[0])] if len(runs) == 1 else []))


def _answer(run: Run) -> Markup:
    busy = words.busy_words(run)
    return join(
        element("p", words.headline(run), class_=f"answer {run.status}"),
        element("p", words.question_words(run), class_="about"),
        *([element("p", busy, class_="busy")] if busy else []),
    )


def _overview(runs: Sequence[Run]) -> Markup:
    """What was chosen in each run, with links down the page."""
    head = element(
        "tr", *(element("th", name, scope="col") for name in ("run", "limits", "chosen", "latency", "memory", "quality"))
    )
    rows = []
    for index, run in enumerate(runs):
        row, limits = run.chosen, "; ".join(words.limits_words(run)) or "none"
        link = element("a", words.full_title(run), href=f"#run-{index}")
        if row is None:
            cells = [element("td", words.headline(run), colspan=4, class_="wrap")]
        else:
            figures = (
                words.latency_words(row),
                words.memory_words(row.memory, words.memory_name([row])),
                words.quality_words(row),
            )
            cells = [element("td", row.name), *(element("td", figure, class_="wrap") for figure in figures)]
        rows.append(element("tr", element("th", link, scope="row"), element("td", limits), *cells))
    table = element("table", element("caption", "What was chosen in each run"), element("thead", head), element("tbody", *rows))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Runs")


def _section(run: Run, name: str, *, alone: bool) -> Markup:
    intro = [] if alone else [element("h2", words.full_title(run)), _answer(run)]
    level = "h2" if alone else "h3"
    parts = [_facts(run), _charts(panels_of(run), name), _table(run), _warnings(run, level), _traces(run, level)]
    return element("section", *intro, *(parts if run.candidates else []), _environment(run, level), id=name)


def _facts(run: Run) -> Markup:
    tiles = [
        element("div", element("dt", name), element("dd", element("strong", value), *(element("span", line) for line in lines)))
        for name, value, lines in words.key_facts(run)
    ]
    return element("dl", *tiles, class_="facts")


def _charts(panels: Sequence[Panel], name: str) -> Markup:
    if not panels:
        return element("p", "There is nothing to draw: no budget has a latency or a memory figure.", class_="empty")
    figures = [
        element("figure", element("figcaption", element("b", panel.title), element("span", panel.legend)), draw(panel, name))
        for panel in panels
    ]
    return element("div", *figures, class_="charts")


def _table(run: Run) -> Markup:
    columns = columns_of(run)
    groups = [(group, len(list(members))) for group, members in groupby(columns, key=lambda column: column.group)]
    top = [
        element("th", group, scope="colgroup", colspan=span) if group else element("td", colspan=span) for group, span in groups
    ]
    names = [element("th", column.name, scope="col", class_=_kind(column)) for column in columns]
    rows = [_row(columns, index, names) for index, names in enumerate(named(run))]
    table = element(
        "table",
        element("caption", "Every budget"),
        element("thead", element("tr", *top), element("tr", *names)),
        element("tbody", *rows),
    )
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Every budget")


def _row(columns: Sequence[Column], index: int, names: Sequence[str]) -> Markup:
    first, *rest = columns
    cells = [element("td", column.cells[index], class_=_kind(column)) for column in rest]
    state = " ".join(name.replace(" ", "-").replace("%", "") for name in names)
    return element("tr", element("th", first.cells[index], scope="row"), *cells, class_=state or None)


def _kind(column: Column) -> str | None:
    return "figure" if column.figures else None


def _warnings(run: Run, level: str) -> Markup:
    found = words.warnings_of(run)
    if not found:
        return element("p", "No warnings.", class_="about")
    items = [element("li", element("b", name), f" {text}") for name, text in found]
    return join(element(level, "Warnings", class_="part"), element("ul", *items, class_="warnings"))


def _traces(run: Run, level: str) -> Markup:
    drawn = traces(run)
    if not drawn:
        return Markup("")
    about = "In the order of time, all to one scale from zero; each stroke runs from the fastest to the slowest of its calls."
    return join(
        element(level, "Every call", class_="part"),
        element("p", about, class_="about"),
        element("div", *drawn, class_="traces"),
    )


def _environment(run: Run, level: str) -> Markup:
    lists = []
    for name, pairs in words.environment_of(run):
        rows = [element("div", element("dt", key), element("dd", text)) for key, text in pairs]
        lists.append(element("div", element(level, name, class_="part"), element("dl", *rows)))
    return element("div", *lists, class_="environment")


def _samples(link: Markup) -> Markup:
    return element("p", element("b", "Raw samples: "), link, class_="samples")


def _footer() -> Markup:
    return element(
        "footer",
        "Bounds are one-sided order statistics with exact binomial ranks, at as many independent samples as the calls "
        "are worth. "
        "Quality was measured in training and comes with the checkpoint; its shares are of the largest budget's. "
        f"Written by essm-deploy {__version__}.",
    )
