"""Every task of the registry: its recipe explains itself, and a smoke run of it ends in a checkpoint that compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from essm_deploy.errors import UsageError
from essm_deploy.families import open_checkpoint
from essm_train.cli import run
from essm_train.registry import TASKS
from essm_train.settings import load_recipe, packaged, variants
from tests.families.test_es_ssm import PARITY, worst_errors

NAMES = sorted(TASKS)
CONFIGS = packaged("keywords").parent


def test_the_list_names_every_task_and_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert re.search(rf"^{name} ", shown, re.MULTILINE)
    assert "--config 1290m, 160m, 287m" in shown


def test_every_packaged_recipe_is_of_a_task() -> None:
    wanted = {path.stem for path in CONFIGS.glob("*.toml")}
    known = set(NAMES) | {f"{name}-{variant}" for name in NAMES for variant in variants(name)}
    assert wanted == known


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_every_key_and_the_keys_that_need_it_a_word(name: str) -> None:
    module = TASKS[name].load()
    recipe = load_recipe(module.Recipe, name)
    module.check(recipe)
    text = packaged(name).read_text()
    for section, values in recipe.to_dict().items():
        body = re.search(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        assert body is not None, section
        written = re.findall(r"^(\w+) = ", body[1], re.MULTILINE)
        assert sorted(written) == sorted(values), section
    explained = len(re.findall(r"^\w+ = .*#", text, re.MULTILINE))
    assert explained >= 0.8 * len(re.findall(r"^\w+ = ", text, re.MULTILINE))


@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in NAMES for variant in variants(name)])
def test_a_variant_is_a_recipe(name: str, variant: str) -> None:
    module = TASKS[name].load()
    recipe = load_recipe(module.Recipe, name, variant)
    module.check(recipe)
    assert recipe != load_recipe(module.Recipe, name)


def test_a_variant_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["bytes", "--data", "x", "-o", str(tmp_path / "x"), "--config", "13b"]) == 2
    assert "13b" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_run_on_made_up_data_ends_in_a_checkpoint_that_compiles(
    name: str, tmp_path: Path, shared_banks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--smoke", "-o", str(tmp_path / "out"), "--device", "cpu"]) == 0, capsys.readouterr().err
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.quality is not None
    assert f"essm-train {name} " in checkpoint.card
    assert "--smoke" in checkpoint.card
    assert str(tmp_path) not in checkpoint.card
    # it compiles, and the engines compute it; twice the bound of the models that the family's own tests compile
    errors = worst_errors(checkpoint, tmp_path / "engines", checkpoint.config["budgets"])
    assert max(errors.values()) <= 2 * PARITY, errors


@pytest.mark.parametrize("name", NAMES)
def test_without_data_only_a_smoke_run_goes_on(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "-o", str(tmp_path / "out")]) == 2
    assert "--data is missing" in capsys.readouterr().err


def test_a_recipe_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[train]\nprecision = 'half'\n")
    with pytest.raises(UsageError, match=r"train\.precision is 'half'; expected auto, float32 or bfloat16"):
        load_recipe(TASKS["bytes"].load().Recipe, "bytes", tmp_path / "wrong.toml")
