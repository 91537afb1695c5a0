"""The recorded runs: every file is what it says, names nothing of the machine that wrote it, and belongs to what ships."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from essm_deploy.checkpoint import content_hash
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.reporting.reading import load, runs_of
from essm_deploy.profiling.reporting.write import write_reports
from essm_deploy.targets.description import find_target
from tests.benchmarks.record import CHECKPOINTS, MEASURED, SUFFIXES, TARGETS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(MEASURED.glob("*.json"))
TEXTS = sorted(path for path in MEASURED.iterdir() if path.suffix in (".json", ".html", ".md"))
PLACES = r"/(home|root|work|tmp|Users|var|usr|opt|etc|mnt)/|hostname"
PEOPLE = r"[\w.-]+@[\w.-]+|\b\d{1,3}(\.\d{1,3}){3}\b(?!-node)"  # of an address; V8's version in Node looks like one
PRIVATE = re.compile(f"{PLACES}|{PEOPLE}")


def test_both_checkpoints_are_recorded_on_the_cpu() -> None:
    assert {path.stem for path in DOCUMENTS} >= {f"{name}-cpu" for name in CHECKPOINTS}
    assert {path.stem for path in DOCUMENTS} <= {f"{name}-{target}" for name in CHECKPOINTS for target in TARGETS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_recorded_run_is_valid_and_renders(path: Path, tmp_path: Path) -> None:
    (run,) = runs_of(load(path), path.name)
    assert (run.status, run.target) == ("ok", path.stem.split("-", 1)[1])
    assert all(row.verdict == "valid" and len(row.samples) >= 100 for row in run.candidates)
    assert run.environment is not None
    assert run.environment.machine
    find_target(run.target)
    write_reports(load(path), [tmp_path / "out.html", tmp_path / "out.md"], source=path)
    for suffix in ("html", "md"):
        texts = [(tmp_path / f"out.{suffix}").read_text(), path.with_suffix(f".{suffix}").read_text()]
        figures = [re.findall(r"\d[\d.,]*\d", text.split("Versions")[0]) for text in texts]
        assert figures[0] == figures[1], (
            f"{path.stem}.{suffix} was not made from it: python -m tests.benchmarks.record --render"
        )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_recorded_run_is_of_the_checkpoint_that_ships(path: Path) -> None:
    (run,) = runs_of(load(path), path.name)
    checkpoint = open_checkpoint(ROOT / "examples" / "checkpoints" / run.model.name)
    assert run.model.hash == content_hash(checkpoint)
    quality = {row.budget: row.quality.value for row in run.candidates if row.quality}
    assert quality == {int(k): v for k, v in json.loads((checkpoint.path / "quality.json").read_text())["budgets"].items()}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_nothing_recorded_names_a_machine_a_path_or_a_person(path: Path) -> None:
    text = path.read_text()
    found = [match[0] for match in PRIVATE.finditer(text)]
    assert found == []
    assert path.stat().st_size < 600_000


def test_each_run_is_there_in_every_form() -> None:
    names = {path.name for path in MEASURED.iterdir()}
    assert {f"{path.stem}.{suffix}" for path in DOCUMENTS for suffix in SUFFIXES} <= names
