"""The comparison with one Transformer++ per budget trains what is missing and tells what is there, no more and no less."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.errors import UsageError
from essm_deploy.spectral.bank import Bank
from essm_train.baselines import keywords_transformer, runs
from essm_train.baselines.comparison import table
from essm_train.baselines.runs import Comparison, Spec
from essm_train.baselines.turns import drawn, measure
from essm_train.export import export_checkpoint
from essm_train.model import EsSsm
from essm_train.study import load_study, run_study
from essm_train.tasks import keywords
from tests.checkpoints import random_bank

CPU = torch.device("cpu")
STUDY = """
title = "Tones"
task = "keywords"
seeds = [0, 1]
[base.model]
hidden_size = 16
num_hidden_layers = 1
k_max = 4
[base.budgets]
trained = [2, 4]
[base.train]
epochs = 5
batch_size = 8
eval_every = 5
ema = 0.0
[variants.dropout]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "tones.toml").write_text(STUDY)
    return tmp_path / "tones.toml"


@pytest.fixture
def elastic(study: Path, tmp_path: Path) -> Path:
    """A folder of the elastic study as it would be after training, whose weights nothing trained."""
    config = Comparison(load_study(str(study)), tmp_path).elastic_config
    bank = Bank(random_bank(4, 100), np.geomspace(0.3, 1e-6, 4), "embedded")
    fields = {"task": "audio-classification", "id2label": {str(i): f"word {i}" for i in range(10)}}
    for seed, values in enumerate(({"2": 0.5, "4": 0.6}, {"2": 0.7, "4": 0.8})):
        where = tmp_path / "elastic" / f"dropout-seed{seed}"
        quality = {"schema_version": "1.0", "metric": "accuracy", "direction": "maximize", "split": "test", "samples": 10}
        where.parent.mkdir(exist_ok=True)
        export_checkpoint(
            where, EsSsm(config, bank.filters, bank.sigma), bank, [2, 4], fields, quality | {"budgets": values}, "A card."
        )
        training = where.with_name(where.name + ".training")
        training.mkdir()
        (training / "spent.json").write_text(json.dumps({"hours": 1.0}))
        log = [{"step": 0, "loss": 1.0}, {"epoch": 1, "seconds": 4.0}, {"epoch": 2, "seconds": 5.0 + 2 * seed}]
        (training / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return tmp_path / "elastic"


def arguments(study: Path, tones: Path, folder: Path, *more: str) -> list[str]:
    return ["--study", str(study), "--data", str(tones), "-o", str(folder), "--rounds", "0", "--device", "cpu", *more]


def cells(text: str, first: str) -> list[str]:
    """A row of the table."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


def test_every_size_is_trained_once_and_the_table_says_what_came_of_it(
    study: Path, elastic: Path, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    sizes = ["--budgets", "2", "4", "--seeds", "0", "1", "--lr", "1e-6", "1e-2"]
    given = arguments(study, tones, folder, "--elastic", str(elastic), *sizes)
    assert keywords_transformer.main(given) == 0
    text = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["learning-rate.json", "K4-seed0-lr1e-06", *(f"K{k}-seed{s}-lr0.01" for k in (2, 4) for s in (0, 1))]
    )
    found = {k: [json.loads((folder / f"K{k}-seed{s}-lr0.01" / "result.json").read_text()) for s in (0, 1)] for k in (2, 4)}
    for k, results in found.items():
        row, shape = cells(text, str(k)), Comparison(load_study(str(study)), folder).match(k)
        accuracies = [100 * r["test"] for r in results]
        assert row[1].replace(",", "") == str(shape.target)
        assert row[4:6] == [f"{shape.width}, {shape.intermediate_size}", f"{results[0]['parameters']:,}"]
        assert row[7] == f"{np.mean(accuracies):.1f} ± {np.std(accuracies, ddof=1):.1f}"
        assert results[0]["recipe"]["model"]["hidden_size"] == results[0]["hidden_size"] == shape.width
    assert cells(text, "2")[2] == "60.0 ± 14.1"  # of the elastic runs
    assert cells(text, "all")[3] == "10 ± 1"
    whole = sum(np.mean([r["step_seconds"] for r in results]) for results in found.values())
    assert cells(text, "all")[8] == f"{whole:.0f}"
    assert f"{whole / 10.0:.2f} times as long" in text
    assert "Learning rate 0.01, chosen by validation accuracy at K=4, seed 0, of 1e-06 (" in text
    assert "lies at the edge" in text
    assert max(r["val"] for r in found[4]) >= 0.5  # ten tones, a tenth by chance: the runs did learn
    assert not list(folder.glob("*/state.pt"))

    def untrained(*_: object) -> None:
        raise AssertionError("a complete run was trained again")

    monkeypatch.setattr(runs, "train", untrained)
    assert keywords_transformer.main(given) == 0
    assert capsys.readouterr().out == text
    assert keywords_transformer.main([*given, "--table"]) == 0
    assert capsys.readouterr().out == text
    (folder / "K2-seed1-lr0.01" / "result.json").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        keywords_transformer.main(given)
    assert keywords_transformer.main([*given, "--table"]) == 0
    assert "K=2 1, K=4 2." in capsys.readouterr().out


def test_a_killed_run_goes_on_to_the_same_end(
    study: Path, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--budgets", "4", "--seeds", "0", "--lr", "1e-2"]
    assert keywords_transformer.main(arguments(study, tones, tmp_path / "whole", *more)) == 0
    make = keywords.Keywords.batch

    def killed(task: keywords.Keywords, step: int, *rest: object) -> object:
        if step == 13:
            raise KeyboardInterrupt
        return make(task, step, *rest)

    monkeypatch.setattr(keywords.Keywords, "batch", killed)
    assert keywords_transformer.main(arguments(study, tones, tmp_path / "parts", *more)) == 130
    assert (tmp_path / "parts" / "K4-seed0-lr0.01" / "state.pt").is_file()
    assert keywords_transformer.main(arguments(study, tones, tmp_path / "parts", "--table")) == 2
    monkeypatch.setattr(keywords.Keywords, "batch", make)
    assert keywords_transformer.main(arguments(study, tones, tmp_path / "parts", *more)) == 0
    whole, parts = (tmp_path / name / "K4-seed0-lr0.01" for name in ("whole", "parts"))
    assert losses(parts) == losses(whole)
    ends = [json.loads((folder / "result.json").read_text()) | {"step_seconds": 0.0} for folder in (whole, parts)]
    assert ends[0] == ends[1]
    assert "no other was tried" in capsys.readouterr().out


def test_a_result_of_another_recipe_is_refused(study: Path, tmp_path: Path) -> None:
    comparison, spec = Comparison(load_study(str(study)), tmp_path), Spec(2, 0, 0.01)
    (tmp_path / spec.name).mkdir()
    result = {"recipe": json.loads(json.dumps(comparison.recipe(spec).to_dict())), "test": 0.5}
    (tmp_path / spec.name / "result.json").write_text(json.dumps(result))
    assert comparison.result(spec) == result
    study.write_text(STUDY.replace("epochs = 5", "epochs = 3"))
    with pytest.raises(UsageError, match="another recipe"):
        Comparison(load_study(str(study)), tmp_path).result(spec)


def test_the_recipe_is_the_elastic_runs_but_for_the_model_the_budgets_and_the_rate() -> None:
    comparison = Comparison(load_study("keywords-dropout"), Path())
    ours, theirs = comparison.elastic_recipe(1).to_dict(), comparison.recipe(Spec(8, 1, 2e-3)).to_dict()
    changed = {(section, key) for section, keys in ours.items() for key in keys if keys[key] != theirs[section][key]}
    sizes = {("model", "hidden_size"), ("model", "k_max"), ("budgets", "trained"), ("budgets", "sampled")}
    assert changed == {*sizes, ("optimizer", "lr")}
    assert comparison.elastic_config.hidden_size == 32


def test_all_models_are_timed_in_turns(study: Path, tones: Path, tmp_path: Path, keyword_bank: None) -> None:
    study.write_text(STUDY.replace("epochs = 5", "epochs = 3").replace("[0, 1]", "[0]"))
    comparison = Comparison(load_study(str(study)), tmp_path)
    run_study(comparison.study, tones, tmp_path / "elastic", "cpu")
    entries = [json.loads(x) for x in (tmp_path / "elastic/dropout-seed0.training/log.jsonl").read_text().splitlines()]
    trained = Counter(entry["budget"] for entry in entries if "budget" in entry)
    assert drawn(comparison.elastic_recipe(0), 15, 5) == trained
    assert set(trained) == {2, 4}

    found = measure(comparison, (2, 4), tones, 2, CPU)
    for side, counts in (
        (found["elastic"], trained),
        (found["transformer"]["2"], {2: 15}),
        (found["transformer"]["4"], {4: 15}),
    ):
        assert set(side["step_ms"]) == {str(k) for k in counts}
        for clock, total in enumerate(("seconds", "own_seconds")):
            seconds = sum(counts[k] * side["step_ms"][str(k)][clock] / 1000 for k in counts)
            assert side[total] == pytest.approx(seconds, abs=0.006)  # it has two digits
            assert side[total] > 0.0
    (tmp_path / "learning-rate.json").write_text(json.dumps({"chosen": 0.01, "tried": {"0.01": {}}}))
    (tmp_path / "turns.json").write_text(json.dumps(found))
    text = table(comparison, (2, 4), (0,), tmp_path / "elastic")
    sums = [found["transformer"][k]["seconds"] for k in ("2", "4")]
    assert f"{sum(sums) / found['elastic']['seconds']:.2f} times as long (2 rounds, 15 steps a run)" in text
    assert cells(text, "2")[7] == cells(text, "all")[8] == "–"  # nothing was trained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--budgets", "2", "5"], "budget 5: expected 1 to 4"),
        (["--lr", "0"], "--lr is above 0"),
        (["--study", "bytes-dropout"], "expected one of task keywords"),
        (["--table"], "no learning rate was chosen there yet"),
        (["--data", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_a_wrong_request_is_one_line(
    study: Path, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str
) -> None:
    assert keywords_transformer.main(arguments(study, tones, tmp_path / "out", "--budgets", "2", *change)) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line


def test_training_without_data_is_refused(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keywords_transformer.main(["--study", str(study), "-o", str(tmp_path / "out")]) == 2
    assert "--data is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder, study: None, "has no value at K=3"),
        (lambda folder, study: study.write_text(STUDY.replace("hidden_size = 16", "hidden_size = 24")), "parameters at K=2"),
        (lambda folder, study: folder.rename(folder.with_name("elsewhere")), "expected finished runs dropout-seed<n>"),
    ],
)
def test_an_elastic_folder_that_does_not_fit_is_refused(
    study: Path, elastic: Path, tmp_path: Path, spoil: object, message: str
) -> None:
    (tmp_path / "learning-rate.json").write_text(json.dumps({"chosen": 0.01, "tried": {"0.01": {}}}))
    spoil(elastic, study)  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        table(Comparison(load_study(str(study)), tmp_path), (2, 3, 4), (0, 1), elastic)
