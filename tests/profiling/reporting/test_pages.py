"""What a reader finds in a report, in every format, for every kind of document."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from essm_deploy.profiling.reporting.html import html_page
from essm_deploy.profiling.reporting.labels import place_labels
from essm_deploy.profiling.reporting.markdown import markdown
from essm_deploy.profiling.reporting.markup import Markup
from essm_deploy.profiling.reporting.panels import panels_of
from essm_deploy.profiling.reporting.reading import runs_of
from essm_deploy.profiling.reporting.svg import draw
from essm_deploy.profiling.verdict import Limits
from tests.profiling.reporting.documents import BITS, estimated, make_document, nothing_measured

LINK = Markup("<a>samples</a>")


def one_budget() -> dict[str, Any]:
    return make_document(budgets=[8], quality={8: 0.9})


def no_bounds() -> dict[str, Any]:
    document = make_document()
    for row in document["candidates"]:
        row["latency_ms"] |= {"lower": None, "upper": None}
        row["memory"] |= {"peak_bytes": None, "reasons": {"peak_bytes": "VmHWM is not shown here"}}
    return document


def failed() -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "status": "failed",
        "target": "kitchen-pi",
        "budget": None,
        "message": "the way there was cut",
    }


def several() -> dict[str, Any]:
    runs = [
        make_document(Limits(max_latency_ms=2.0)),
        make_document(Limits(max_latency_ms=3.0), target="web-wasm"),
        nothing_measured(),
        failed(),
    ]
    return {"schema_version": "1.0", "status": "ok", "runs": runs}


KINDS: list[Callable[[], dict[str, Any]]] = [
    make_document,
    lambda: make_document(Limits(max_latency_ms=2.0, max_memory_bytes=56 * 2**20)),
    lambda: make_document(quality=None),
    lambda: make_document(quality=BITS, direction="lower"),
    one_budget,
    no_bounds,
    nothing_measured,
    estimated,
    several,
    failed,
    lambda: make_document(budgets=range(1, 65), quality=None),
]


class Page(HTMLParser):
    """Every element must be closed, and nothing may be open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def page(document: dict[str, Any]) -> Page:
    return Page(html_page(runs_of(document, "a document"), LINK))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_document_makes_a_whole_page_that_loads_nothing(kind: Callable[[], dict[str, Any]]) -> None:
    found = page(kind())
    assert found.open == []
    assert not set(found.tags) & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    addresses = [value for name, value in found.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert all((value or "").startswith("#") for value in addresses)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'") in found.attributes


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_document_makes_markdown_with_one_row_a_budget(kind: Callable[[], dict[str, Any]]) -> None:
    runs = runs_of(kind(), "a document")
    text = markdown(runs, "there")
    for run in runs:
        for row in run.candidates:
            assert re.search(rf"^\| {re.escape(row.name)} \|", text, re.MULTILINE)
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) <= len(runs)


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_well_formed_named_and_within_its_frame(kind: Callable[[], dict[str, Any]]) -> None:
    for run in runs_of(kind(), "a document"):
        for panel in panels_of(run):
            root = ElementTree.fromstring(draw(panel, "p"))
            assert root.find("title") is not None
            assert root.find("desc") is not None
            assert root.get("role") == "img"
            assert set((root.get("aria-labelledby") or "").split()) == {e.get("id") for e in root.iter() if e.get("id")}
            for name, most in (
                ("x", 460),
                ("y", 300),
                ("x1", 460),
                ("x2", 460),
                ("y1", 300),
                ("y2", 300),
                ("cx", 440),
                ("cy", 300),
            ):
                places = [float(element.get(name, 0)) for element in root.iter()]
                assert all(0 <= place <= most for place in places), (panel.name, name)


def test_every_figure_is_there_with_its_basis() -> None:
    document = make_document(Limits(max_latency_ms=2.0))
    text = page(document).text
    assert "Latency, ms (measured)" in text
    assert "Quality (measured in training)" in text
    assert text.count("calls (measured") + text.count("(measured") > 5
    for row in document["candidates"]:
        assert f"K={row['budget']}" in text
        assert f"{row['quality']['value']:.4g}" in text


def test_an_estimate_is_never_called_measured() -> None:
    found = page(estimated())
    assert "Latency, ms (estimated)" in found.text
    assert "Latency, ms (measured)" not in found.text
    assert "by estimate" in found.text
    details = re.findall(r"K=\d+: [^<]*", html_page(runs_of(estimated(), "d"), LINK))
    assert details
    assert not [line for line in details if "measured" in line.replace("measured in training", "")]


def test_the_choice_the_sweet_spot_and_the_boundary_are_marked() -> None:
    run = runs_of(make_document(Limits(max_latency_ms=2.0)), "d")[0]
    text = html_page([run], LINK)
    rows = dict(re.findall(r'<tr class="([^"]+)"><th scope="row">(K=\d+)', text))
    marked = {name.removesuffix(" warnings"): row for name, row in rows.items()}
    assert {name: marked.get(name) for name in ("chosen best-quality", "sweet-spot", "below-90")} == {
        "chosen best-quality": "K=16",
        "sweet-spot": "K=8",
        "below-90": "K=2",
    }
    assert "limit 2 ms" in text
    assert "98% of full" in text
    assert "90% of full" in text


def test_a_limit_far_beyond_the_figures_does_not_squash_them() -> None:
    run = runs_of(make_document(Limits(max_latency_ms=5000.0)), "d")[0]
    latency = next(panel for panel in panels_of(run) if panel.name == "latency")
    assert latency.horizontal[0].beyond == "high"
    assert latency.y.high < 10
    assert "limit 5 s ↑" in draw(latency, "p")


def test_the_marks_of_a_metric_that_falls_are_the_right_way_round() -> None:
    run = runs_of(make_document(quality=BITS, direction="lower"), "d")[0]
    trade = next(panel for panel in panels_of(run) if panel.name == "quality-latency")
    lines = {line.role: line.value for line in trade.horizontal}
    assert lines["sweet"] == pytest.approx(1.93 / 0.98)
    assert lines["collapse"] == pytest.approx(1.93 / 0.90)
    assert "lower is better" in trade.y.label


def test_missing_figures_are_said_to_be_missing_and_never_zero() -> None:
    text = page(no_bounds()).text
    assert "no upper bound" in text
    assert "VmHWM is not shown here" in text
    assert not re.search(r"\b0 (ms|B)\b", text)


def test_without_a_valid_engine_the_page_says_what_happened() -> None:
    text = page(nothing_measured()).text
    assert "Nothing fits: every engine failed" in text
    assert text.count("failed: the worker died") == 5
    assert "There is nothing to draw" in text


def test_several_runs_have_an_overview_that_leads_to_them() -> None:
    found = page(several())
    targets = {value for name, value in found.attributes if name == "href"}
    assert targets == {"#run-0", "#run-1", "#run-2", "#run-3"}
    assert targets == {f"#{value}" for name, value in found.attributes if name == "id" and (value or "").count("-") == 1}


def test_a_run_that_failed_says_why_and_has_no_empty_table() -> None:
    text = html_page(runs_of(failed(), "d"), LINK)
    assert "Failed: the way there was cut" in text
    assert "<table" not in text
    assert "|" not in markdown(runs_of(failed(), "d"), "there")


def test_headings_follow_one_another() -> None:
    for document in (make_document(), several()):
        levels = [int(tag[1]) for tag in page(document).tags if tag in ("h1", "h2", "h3", "h4")]
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))


def test_no_id_occurs_twice_on_a_page() -> None:
    ids = [value for name, value in page(several()).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_tables_have_headers_for_those_who_hear_them() -> None:
    text = html_page(runs_of(make_document(), "d"), LINK)
    assert text.count("<caption>") == 1
    assert text.count('scope="row"') == 5
    first = re.findall(r"<tbody><tr[^>]*>(.*?)</tr>", text)[0]
    assert text.count('scope="col"') == first.count("<th") + first.count("<td")


def gap(box: tuple[float, float, float, float], x: float, y: float) -> float:
    """From a point to a rectangle: left, bottom, right, top."""
    return math.hypot(max(box[0] - x, 0, x - box[2]), max(box[1] - y, 0, y - box[3]))


def test_a_crowd_of_points_has_only_labels_that_stand_nearest_to_their_own() -> None:
    crowded = make_document(budgets=range(1, 17), quality={k: 0.9 + 0.001 * (k % 4) for k in range(1, 17)}, slope=0.004)
    panel = next(panel for panel in panels_of(runs_of(crowded, "d")[0]) if panel.name == "quality-latency")
    labels = place_labels(panel)
    assert 2 <= len(labels) < 16
    for label in labels:
        box = (label.x * 378, label.y * 230, label.x * 378 + 7 * len(label.text), label.y * 230 + 14)
        away = {mark.short: gap(box, panel.x.at(mark.x) * 378, panel.y.at(mark.y) * 230) for mark in panel.marks}
        assert min(away, key=lambda name: away[name]) == label.mark.short
    assert all(label.text.startswith(label.mark.short) for label in labels)


def test_labels_of_a_chart_do_not_lie_on_each_other() -> None:
    run = runs_of(make_document(Limits(max_latency_ms=2.0)), "d")[0]
    root = ElementTree.fromstring(draw(next(panel for panel in panels_of(run) if panel.name == "quality-latency"), "p"))
    names = [e for e in root.iter("text") if (e.get("class") or "").startswith("name")]
    boxes = [(float(e.get("x", 0)), float(e.get("y", 0)), 6.4 * len(e.text or "")) for e in names]
    assert {e.text for e in names} == {"K=2", "K=4", "K=8 sweet spot", "K=16 chosen", "K=32"}
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[:i]:
            assert x + width <= other_x or other_x + other_width <= x or abs(y - other_y) >= 12
