"""Files: the suffix decides, nothing names the machine, and what cannot be written is said before anything is measured."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import pytest

from essm_deploy.errors import OutputError, UnavailableError, UsageError
from essm_deploy.profiling.reporting.reading import load, runs_of
from essm_deploy.profiling.reporting.write import check_reports, compact, shareable, write_reports
from tests.profiling.reporting.documents import make_document, nothing_measured
from tests.profiling.reporting.test_pages import Page


def test_the_suffix_decides_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / f"out.{suffix}" for suffix in ("html", "md", "png", "json")]
    write_reports(make_document(), paths)
    starts = [path.read_bytes()[:8] for path in paths]
    assert starts[0].startswith(b"<!doctyp")
    assert starts[1].startswith(b"# keywo")
    assert starts[2] == b"\x89PNG\r\n\x1a\n"
    assert runs_of(load(paths[3]), "out.json")[0].target == "cpu"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)


def test_a_page_by_itself_carries_its_samples(tmp_path: Path) -> None:
    document = make_document()
    write_reports(document, [tmp_path / "out.html"])
    text = (tmp_path / "out.html").read_text()
    found = re.search(r'href="data:application/json;base64,([^"]+)" download="out.json"', text)
    assert found is not None
    carried = json.loads(base64.b64decode(found[1]))
    assert carried["candidates"][0]["samples"] == [round(v, 4) for v in document["candidates"][0]["samples"]]


def test_a_page_beside_its_document_links_to_it(tmp_path: Path) -> None:
    write_reports(make_document(), [tmp_path / "a b.json", tmp_path / "out.html", tmp_path / "out.md"])
    assert 'href="a%20b.json"' in (tmp_path / "out.html").read_text()
    assert "(a%20b.json)" in (tmp_path / "out.md").read_text()
    assert "base64" not in (tmp_path / "out.html").read_text()


def test_a_page_elsewhere_links_to_the_document_that_it_was_made_from(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "doc.json").write_text(json.dumps(make_document()))
    write_reports(load(tmp_path / "doc.json"), [tmp_path / "pages" / "out.html"], source=tmp_path / "doc.json")
    assert 'href="../doc.json"' in (tmp_path / "pages" / "out.html").read_text()


def test_no_report_names_a_place_on_this_machine(tmp_path: Path) -> None:
    paths = [tmp_path / f"out.{suffix}" for suffix in ("html", "md", "json")]
    write_reports(make_document() | {"bundle": "/home/somebody/out"}, paths)
    for path in paths:
        assert "somewhere" not in path.read_text()
        assert "somebody" not in path.read_text()
        assert str(tmp_path) not in path.read_text()


def test_what_is_shared_says_the_same_as_what_was_measured() -> None:
    document = make_document()
    shared = json.loads(compact(shareable(document)))
    assert shared.keys() == document.keys() - {"observations"}
    assert [row["latency_ms"] for row in shared["candidates"]] == [row["latency_ms"] for row in document["candidates"]]
    for mine, theirs in zip(shared["candidates"], document["candidates"], strict=True):
        assert mine["samples"] == pytest.approx(theirs["samples"], abs=5e-5)


def test_compact_json_has_the_samples_of_a_budget_on_one_line() -> None:
    value = {"a": [1, 2.5, None], "b": [{"c": []}, "text"], "d": {}, "e": {"f": True}}
    assert json.loads(compact(value)) == value
    assert '"a": [1, 2.5, null]' in compact(value)


def test_an_unknown_suffix_is_one_clear_line_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out\.pdf: the suffix decides .* expected \.html, \.md, \.png, \.json"):
        write_reports(make_document(), [tmp_path / "out.html", tmp_path / "out.pdf"])
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a directory; make it"):
        check_reports([tmp_path / "missing" / "out.html"])
    (tmp_path / "out.html").mkdir()
    with pytest.raises(OutputError, match="is a directory; name a file"):
        check_reports([tmp_path / "out.html"])


def test_without_matplotlib_a_picture_is_refused_with_the_way_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=re.escape("pip install 'essm-deploy[report]'")):
        check_reports([tmp_path / "out.png"])
    check_reports([tmp_path / "out.html"])


@pytest.mark.parametrize("document", [make_document(quality=None), nothing_measured(), {**make_document(budgets=[4])}])
def test_every_document_makes_a_picture(document: dict[str, object], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_reports(document, [tmp_path / "out.png"])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_takes_its_words_as_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = make_document() | {"message": "$\\frac{", "target": "$x^$"}
    write_reports(document, [tmp_path / "out.png"])
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_a_file_name_cannot_add_an_attribute(tmp_path: Path) -> None:
    beside, alone = tmp_path / 'a" onclick="b.json', tmp_path / 'c" onclick="d.html'
    write_reports(make_document(), [beside, tmp_path / "out.html"])
    write_reports(make_document(), [alone])
    for path in (tmp_path / "out.html", alone):
        assert "onclick" not in {name for name, _ in Page(path.read_text()).attributes}
