"""Two documents against each other: what is the same is called so, and what makes them incomparable is said first."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from essm_deploy.errors import UsageError
from essm_deploy.profiling.reporting.compare import compare_documents
from tests.profiling.reporting.documents import estimated, make_document


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return compare_documents(a, b, "a.json", "b.json")


def verdicts(document: dict[str, Any], name: str) -> list[str]:
    return [budget["latency_ms"][name]["verdict"] for budget in document["pairs"][0]["budgets"]]


def test_a_document_does_not_differ_from_itself() -> None:
    document = make_document()
    found = compare(document, document)
    pair = found["pairs"][0]
    assert found["warnings"] == []
    assert pair["differences"] == []
    assert [b["latency_ms"]["p50"]["ratio"] for b in pair["budgets"]] == [1.0] * 5
    assert set(verdicts(found, "p50") + verdicts(found, "p95")) == {"no difference seen"}
    assert {b["memory"]["difference_bytes"] for b in pair["budgets"]} == {0}
    assert {b["quality"]["verdict"] for b in pair["budgets"]} == {"equal"}


def test_two_runs_of_one_device_do_not_differ() -> None:
    found = compare(make_document(seed=1), make_document(seed=2))
    assert set(verdicts(found, "p50")) == {"no difference seen"}
    assert found["pairs"][0]["overall"]["p50"]["verdict"] == "no difference seen"


def test_a_slower_device_is_found_at_every_budget_where_it_is_slower() -> None:
    found = compare(make_document(slope=0.05), make_document(slope=0.15, seed=2))
    assert verdicts(found, "p50")[1:] == ["B is slower"] * 4
    ratio = found["pairs"][0]["budgets"][-1]["latency_ms"]["p50"]
    assert ratio["lower"] < 5.8 / 2.6 < ratio["upper"]
    assert "B is slower" in found["pairs"][0]["summary"][0]


def test_all_intervals_hold_together() -> None:
    assert compare(make_document(), make_document())["pairs"][0]["interval_confidence"] == pytest.approx(1 - 0.05 / 10)


def test_different_machines_are_said_first() -> None:
    other = make_document()
    other["environment"]["machine"]["cpu"] = "Another processor"
    found = compare(make_document(), other)
    assert found["warnings"][0] == "A and B were measured on different machines: A processor, and Another processor"
    assert {"name": "machine cpu", "a": "A processor", "b": "Another processor"} in found["pairs"][0]["differences"]


def test_different_settings_versions_and_checkpoints_are_said() -> None:
    other = make_document()
    other["environment"]["settings"]["pace_ms"] = 100.0
    other["environment"]["versions"]["onnxruntime"] = "1.20.0"
    other["model"]["hash"] = "fedcba"
    found = compare(make_document(), other)
    names = {difference["name"] for difference in found["pairs"][0]["differences"]}
    assert names == {"settings pace_ms", "versions onnxruntime", "checkpoint"}
    assert any("different checkpoints" in line for line in found["warnings"])
    assert any("not measured in the same way" in line for line in found["warnings"])


def test_a_disturbed_run_is_named() -> None:
    other = make_document()
    other["candidates"][1]["warnings"] = ["contention: the process waited for a processor 50% of the time"]
    assert (
        "B shared its machine with other work at K=4: what differs there may be that"
        in compare(make_document(), other)["warnings"]
    )


def test_without_samples_the_documents_own_bounds_are_compared() -> None:
    other = make_document(slope=0.5, seed=2)
    for row in other["candidates"]:
        del row["samples"]
    found = compare(make_document(), other)
    assert any("no samples" in line for line in found["warnings"])
    assert verdicts(found, "p95")[-1] == "B is slower"
    assert verdicts(found, "p50")[-1] == "B is slower"
    for row in other["candidates"]:
        del row["latency_ms"]["bounds"]
    assert verdicts(compare(make_document(), other), "p50")[-1] == "cannot tell"


def test_only_common_budgets_are_compared_and_the_others_are_named() -> None:
    found = compare(make_document(budgets=[2, 4, 8]), make_document(budgets=[4, 8, 16]))["pairs"][0]
    assert [budget["budget"] for budget in found["budgets"]] == [4, 8]
    assert (found["only_in_a"], found["only_in_b"]) == ([2], [16])


def test_quality_that_falls_is_better_lower() -> None:
    from tests.profiling.reporting.documents import BITS

    a, b = (make_document(quality=BITS, direction="lower") for _ in range(2))
    b["candidates"][0]["quality"]["value"] = 2.0
    assert compare(a, b)["pairs"][0]["budgets"][0]["quality"]["verdict"] == "B is better"


def test_no_common_budget_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match="no measured budget in common: A has K=2, K=4, B has K=8"):
        compare(make_document(budgets=[2, 4]), make_document(budgets=[8]))


def test_an_estimate_is_not_compared_with_a_measurement() -> None:
    found = compare(make_document(), estimated())
    assert any("estimated" in line for line in found["warnings"])
    assert all(budget["latency_ms"] == {} for budget in found["pairs"][0]["budgets"])


def test_several_runs_are_paired_by_what_they_ask_of_which_target() -> None:
    runs = [make_document(target="cpu"), make_document(target="web-wasm", slope=0.1)]
    several = {"schema_version": "1.0", "runs": runs}
    found = compare(several, {**several, "runs": list(reversed(copy.deepcopy(runs)))})
    assert [pair["target"]["a"] for pair in found["pairs"]] == ["cpu", "web-wasm"]
    assert all(pair["target"]["a"] == pair["target"]["b"] for pair in found["pairs"])
    with pytest.raises(UsageError, match="no target in common: A has cpu, web-wasm, B has t4"):
        compare(several, {**several, "runs": [make_document(target="t4"), make_document(target="t4")]})
