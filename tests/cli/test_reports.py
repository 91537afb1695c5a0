"""`profile --report`, `report` and `compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import _quick, run
from tests.profiling.reporting.documents import make_document, nothing_measured

__all__ = ["_quick"]  # an autouse fixture: measurements of a tenth of the usual length


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(make_document()))
    return path


def test_profile_writes_reports_and_prints_as_before(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = tmp_path / "out.html", tmp_path / "out.md"
    code, out, err = run(capsys, "profile", keywords, "--all-K", "--report", page, "--report", text, "--format", "json", "-q")
    assert (code, err) == (0, "")
    assert [row["budget"] for row in json.loads(out)["candidates"]] == [2, 4, 8]
    assert "<h1>keywords on cpu</h1>" in page.read_text()
    assert text.read_text().startswith("# keywords on cpu\n")


def test_nothing_fits_is_reported_with_what_was_measured_and_where(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = run(capsys, "profile", keywords, "--max-latency", "10ns", "--report", tmp_path / "out.md", "-q")
    text = (tmp_path / "out.md").read_text()
    assert code == 1
    assert "**Nothing fits: " in text
    assert "physical cores: " in text
    assert "(measured, " not in text.split("## Every budget")[0]
    assert "| K=2 |" in text


def test_a_bad_report_is_refused_before_anything_is_measured(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "profile", keywords, "--report", tmp_path / "out.pdf")
    assert (code, out) == (2, "")
    assert "the suffix decides" in err
    assert err.count("\n") == 1


def test_report_needs_no_measurement(document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report", document, "-o", tmp_path / "out.html", "-o", tmp_path / "out.md")
    assert (code, out.split()) == (0, [str(tmp_path / "out.html"), str(tmp_path / "out.md")])
    assert 'href="a.json"' in (tmp_path / "out.html").read_text()


def test_a_report_of_no_valid_engine_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.json").write_text(json.dumps(nothing_measured()))
    assert run(capsys, "report", tmp_path / "none.json", "-o", tmp_path / "out.html")[0] == 0
    assert "the worker died" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "schema_version is missing"),
        ("[]", "not a JSON object"),
        ('{"schema_version": "9.0"}', "schema_version is '9.0'"),
    ],
)
def test_what_is_no_document_is_one_line(
    content: str, message: str, document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(content)
    for arguments in (
        ["report", tmp_path / "bad.json", "-o", tmp_path / "out.html"],
        ["compare", document, tmp_path / "bad.json"],
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


def test_a_document_is_not_overwritten_by_its_own_report(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = document.read_bytes()
    code, _, err = run(capsys, "report", document, "-o", document)
    assert code == 2
    assert "the document itself" in err
    assert document.read_bytes() == before


def test_compare_prints_a_table_or_a_document(document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower = make_document(slope=0.2, seed=2)
    slower["environment"]["machine"]["cpu"] = "Another"
    (tmp_path / "b.json").write_text(json.dumps(slower))
    code, out, err = run(capsys, "compare", document, tmp_path / "b.json")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "warning: A and B were measured on different machines: A processor, and Another"
    assert "differs: machine cpu: A A processor, B Another" in out
    assert out.count("B is slower") >= 8
    assert "accuracy: the same at all 5 budgets" in out
    code, out, _ = run(capsys, "compare", document, tmp_path / "b.json", "--format", "json")
    assert (code, json.loads(out)["kind"]) == (0, "comparison")
