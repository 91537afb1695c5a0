"""A document is somebody else's: it makes one clear line or a sound report, and nothing of it becomes markup."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essm_deploy.errors import EssmError, UsageError
from essm_deploy.profiling.reporting.compare import compare_documents
from essm_deploy.profiling.reporting.document import Run
from essm_deploy.profiling.reporting.html import html_page
from essm_deploy.profiling.reporting.markdown import markdown
from essm_deploy.profiling.reporting.reading import load, runs_of
from essm_deploy.profiling.verdict import Limits
from tests.profiling.reporting.documents import estimated, make_document, nothing_measured
from tests.profiling.reporting.test_pages import LINK, Page

ATTACK = '"><script>alert(1)</script><img src=x onerror=alert(1)>|\n# [x](javascript:alert(1)) \ud800\x00`'
DOCUMENTS = [make_document(Limits(max_latency_ms=2.0), budgets=[2, 4, 8]), nothing_measured(), estimated()]
for document in DOCUMENTS:
    for row in document["candidates"]:
        row["samples"] = row.get("samples", [])[:40]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths_in(item, (*path, key)))]


def replaced(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


def attacked(value: Any) -> Any:
    """Every string that is not one of a fixed set of words becomes an attack, keys of free tables included."""
    fixed = {
        "1.0",
        "ok",
        "nothing_fits",
        "estimated",
        "measured",
        "higher",
        "lower",
        "p95",
        "peak_bytes",
        "device_bytes",
        "valid",
        "failed",
    }
    if isinstance(value, str):
        return value if value in fixed else ATTACK[:60] if value == "accuracy" else ATTACK
    if isinstance(value, list):
        return [attacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: attacked(item) for key, item in value.items()}
    for table in ("machine", "versions", "settings", "reasons", "efficiency"):
        if isinstance(changed.get(table), dict):
            changed[table][ATTACK] = ATTACK
    return changed


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_in_a_document_becomes_markup(document: dict[str, Any]) -> None:
    hostile = attacked(document)
    hostile["target"] = hostile["message"] = ATTACK
    for row in hostile["candidates"]:
        row["warnings"] = [ATTACK]
    runs = runs_of(hostile, "d")
    text = html_page(runs, LINK)
    page = Page(text)
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    text.encode("utf-8")
    written = markdown(runs, "there")
    written.encode("utf-8")
    assert "<script" not in written.replace("\\<script", "")
    assert "](javascript" not in written.replace("\\](", "")
    assert not [line for line in written.splitlines() if line.startswith("# [")]


def read(document: dict[str, Any]) -> tuple[list[Run], str]:
    """The runs, or what is wrong with the document."""
    try:
        return runs_of(document, "doc.json"), ""
    except UsageError as error:
        return [], str(error)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just(ATTACK),
    st.sampled_from([0, -1, 1e308, 5e-324, 2**63, 10**30, "p95", "lower", "", [], {}, [[]], [{}]]),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_mutated_document_is_one_clear_line_or_a_sound_report(data: st.DataObject) -> None:
    document = data.draw(st.sampled_from(DOCUMENTS))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths_in(document)))
        document = replaced(document, path, data.draw(VALUES))
        if not isinstance(document, dict):
            return
    runs, complaint = read(document)
    if complaint:
        assert complaint.startswith("doc.json: ")
        assert len(complaint.splitlines()) == 1
        return
    page = Page(html_page(runs, LINK))
    assert page.open == []
    assert "nan" not in page.text.lower().split()
    markdown(runs, "there").encode("utf-8")
    try:
        compared = compare_documents(document, DOCUMENTS[0], "doc.json", "other.json")
    except UsageError:
        return
    json.dumps(compared, allow_nan=False)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not strict JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"schema_version": "1.0", "schema_version": "1.0"}', "a key occurs twice"),
        (b"{" * 10_000, "not strict JSON"),
        (b'{"a": NaN}', "not strict JSON"),
    ],
)
def test_a_file_that_is_no_document_is_refused_by_name(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(EssmError, match=complaint) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema_version": "2.0"}, "schema_version is '2.0'; expected '1.0'"),
        ({"schema_version": None}, "schema_version is missing"),
        ({"status": "great"}, "status: input should be"),
        ({"candidates": []}, "there are no candidates"),
        ({"budget": 5}, "budget 5 was chosen and is not among the candidates"),
        ({"runs": []}, "runs must be a list of 1 to 256 documents"),
        ({"runs": [{"schema_version": "3"}]}, "runs.0: schema_version is '3'"),
        ({"runs": [7]}, "runs.0: not a JSON object"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_the_key(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        runs_of({**DOCUMENTS[0], **change}, "doc.json")
    assert complaint in str(caught.value)


def test_a_budget_that_occurs_twice_is_refused() -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    document["candidates"].append(document["candidates"][0])
    with pytest.raises(UsageError, match="budget 2 occurs 2 times"):
        runs_of(document, "doc.json")


def test_nesting_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": [deep]}
    with pytest.raises(UsageError, match="nested more than"):
        runs_of({**DOCUMENTS[0], "environment": {"machine": deep}}, "doc.json")
