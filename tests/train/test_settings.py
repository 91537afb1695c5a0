"""Recipes: every key is known, every value is of its type."""

from __future__ import annotations

from pathlib import Path

import pytest

from essm_deploy.errors import UsageError
from essm_train.settings import load_settings


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_packaged_recipe_is_that_of_the_design() -> None:
    settings = load_settings("keywords")
    assert (settings.model.hidden_size, settings.model.num_hidden_layers, settings.model.k_max) == (64, 4, 32)
    assert settings.budgets.trained == (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
    assert (settings.budgets.n_full, settings.optimizer.clip) == (8, 1.0)
    assert (settings.model.dropout, settings.model.drop_path) == (0.1, 0.1)


def test_a_file_replaces_the_keys_it_names_and_no_others(tmp_path: Path) -> None:
    settings = load_settings("keywords", write(tmp_path / "a.toml", "[optimizer]\nlr = 1\n[train]\nepochs = 7\n"))
    assert settings.optimizer.lr == 1.0
    assert isinstance(settings.optimizer.lr, float)
    assert settings.train.epochs == 7
    assert settings.augment == load_settings("keywords").augment


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    settings = load_settings("keywords", write(tmp_path / "a.toml", "[train]\nepochs = 7\nseed = 3\n"))
    changed = settings.with_train(epochs=9, seed=None)
    assert (changed.train.epochs, changed.train.seed) == (9, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepoch = 7", r"unknown key train\.epoch; allowed are epochs, batch_size"),
        ("[training]\nepochs = 7", r"unknown section \[training\]; allowed are model, budgets"),
        ("epochs = 7", r"unknown section \[epochs\]"),
        ("[train]\nepochs = 7.5", "train.epochs is 7.5; expected an integer"),
        ("[train]\nepochs = true", "expected an integer"),
        ("[train]\nepochs = 0", "train.epochs is 0; expected 1 or more"),
        ("[optimizer]\nlr = '1e-3'", "expected a number"),
        ("[budgets]\ntrained = 8", "expected a list"),
        ("[budgets]\ntrained = [2, 16]", "end with k_max 32"),
        ("[augment]\nnoise_db = [3.0]", "lowest, highest"),
        ("[train", "not a readable TOML file"),
    ],
)
def test_a_wrong_recipe_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_settings("keywords", write(tmp_path / "wrong.toml", text))
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: not a readable"):
        load_settings("keywords", tmp_path / "none.toml")
