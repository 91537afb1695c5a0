"""The sweet spot and the collapse boundary are those of the paper: 98% and 90% of the full budget's quality."""

from __future__ import annotations

import pytest

from essm_deploy.profiling.reporting.marks import at_retention, marks_of
from essm_deploy.profiling.reporting.reading import runs_of
from tests.profiling.reporting.documents import BITS, make_document


def test_the_sweet_spot_is_the_smallest_budget_with_98_percent() -> None:
    marks = marks_of(runs_of(make_document(), "d")[0].candidates)
    assert marks.sweet is not None
    assert marks.sweet.budget == 8  # 0.925 of 0.935 is 98.9%; 0.90 is 96.3%
    assert [row.budget for row in marks.collapsed] == [2]  # 80.2%
    assert marks.best is not None
    assert marks.best.budget == 16


def test_a_metric_that_falls_is_read_the_other_way_round() -> None:
    rows = runs_of(make_document(quality=BITS, direction="lower"), "d")[0].candidates
    marks = marks_of(rows)
    assert marks.sweet is not None
    assert marks.sweet.budget == 8  # 1.93 / 1.94; 1.93 / 1.99 is 97.0%
    assert [row.budget for row in marks.collapsed] == [2]  # 1.93 / 2.30 is 83.9%
    assert marks.best is not None
    assert marks.best.budget == 16
    assert at_retention(rows, 0.98) == pytest.approx(1.93 / 0.98)


def test_without_quality_nothing_is_marked() -> None:
    rows = runs_of(make_document(quality=None), "d")[0].candidates
    assert marks_of(rows).known is False
    assert marks_of(rows).best is None
    assert at_retention(rows, 0.98) is None


def test_the_line_of_a_share_is_the_full_budgets_though_it_was_not_measured() -> None:
    document = make_document()
    document["candidates"] = [row for row in document["candidates"] if row["budget"] != 32]
    document["budget"] = 16
    assert at_retention(runs_of(document, "d")[0].candidates, 0.9) == pytest.approx(0.9 * 0.935)
