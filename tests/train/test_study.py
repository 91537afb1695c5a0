"""A study trains what is not there yet and tells what is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from essm_deploy.errors import UsageError
from essm_train.registry import TASKS
from essm_train.study import Study, cell, load_study, main, table

PACKAGED = sorted(path.stem for path in (Path(TASKS["bytes"].load().__file__).parents[1] / "studies").glob("*.toml"))
FILE = """
title = "Tones"
task = "keywords"
seeds = [0, 1]
[base.model]
hidden_size = 8
num_hidden_layers = 1
k_max = 4
[base.budgets]
trained = [2, 4]
[base.train]
epochs = 1
[variants.dropout]
[variants.full.budgets]
sampled = false
"""


def write_run(folder: Path, name: str, values: dict[str, float], hours: float = 0.5) -> None:
    (folder / name).mkdir(parents=True)
    (folder / f"{name}.training").mkdir()
    quality = {"metric": "accuracy", "budgets": values}
    (folder / name / "quality.json").write_text(json.dumps(quality))
    (folder / f"{name}.training" / "spent.json").write_text(json.dumps({"hours": hours}))


@pytest.mark.parametrize("name", PACKAGED)
def test_the_recipes_of_a_packaged_study_are_recipes(name: str) -> None:
    study = load_study(name)
    recipes = {variant: study.recipe(variant, study.seeds[0]) for variant in study.variants}
    assert len({json.dumps(recipe.to_dict(), sort_keys=True) for recipe in recipes.values()}) == len(recipes) > 1


def test_the_seeds_of_one_variant_differ_in_the_seed_alone(tmp_path: Path) -> None:
    (tmp_path / "tones.toml").write_text(FILE)
    study = load_study(str(tmp_path / "tones.toml"))
    assert list(study.runs()) == [("dropout", 0), ("full", 0), ("dropout", 1), ("full", 1)]
    first, second = study.recipe("full", 0), study.recipe("full", 1)
    assert (first.train.seed, second.train.seed) == (0, 1)
    assert first == second.with_train(seed=0)
    assert not first.budgets.sampled


def test_the_table_is_the_mean_over_the_finished_seeds(tmp_path: Path) -> None:
    study = Study("s", "keywords", "t", (0, 1, 2), {}, {"a": {}, "b": {}})
    write_run(tmp_path, "a-seed0", {"2": 0.5, "4": 0.8})
    write_run(tmp_path, "a-seed1", {"2": 0.7, "4": 0.8})
    assert table(study, tmp_path).splitlines()[2:] == ["| a | 2 | 1.00 | 60.0 ± 14.1 | 80.0 ± 0.0 |"]
    assert cell([1.5], 1.0) == "1.500"


def test_a_study_trains_what_is_missing_and_skips_what_is_there(
    tones: Path, tmp_path: Path, keyword_bank: None, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tones.toml").write_text(FILE.replace("[0, 1]", "[0]"))
    write_run(tmp_path / "out", "dropout-seed0", {"2": 0.5, "4": 0.75})
    arguments = [str(tmp_path / "tones.toml"), "--data", str(tones), "-o", str(tmp_path / "out"), "--device", "cpu"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "| dropout | 1 | 0.50 | 50.0 | 75.0 |" in result.output
    assert "| full | 1 | 0.0" in result.output
    assert (tmp_path / "out" / "full-seed0" / "model.safetensors").is_file()
    again = CliRunner().invoke(main, [*arguments, "--table"])
    assert again.output.splitlines()[-1].startswith("| full | 1 |")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "t"\ntask = "tea"\nseeds = [0]\n[variants.a]\n', "task 'tea'; expected one of keywords"),
        ('task = "bytes"\nseeds = [0]\n[variants.a]\n', "key 'title' is missing"),
    ],
)
def test_a_wrong_study_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_study(str(tmp_path / "wrong.toml"))
    with pytest.raises(UsageError, match=r"none of .*keywords-dropout"):
        load_study("unheard-of")
