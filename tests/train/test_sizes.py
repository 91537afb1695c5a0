"""The paper's models by name: each packaged recipe of one has the published count of parameters. Nothing is allocated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from essm_train.model import EsSsm, ModelConfig, count_parameters
from essm_train.registry import TASKS
from essm_train.settings import CommonSettings, load_recipe
from essm_train.tasks.decision_model import Front


def recipe(task: str, variant: str | None) -> CommonSettings:
    return load_recipe(TASKS[task].load().Recipe, task, variant)


def count(settings: CommonSettings, budget: int, front: torch.nn.Module | None = None, **kind: int | bool) -> int:
    m = settings.model
    with torch.device("meta"):
        config = ModelConfig(m.hidden_size, m.num_hidden_layers, m.k_max, m.k_max, **kind)
        return count_parameters(EsSsm(config, np.zeros((m.k_max, m.k_max)), np.zeros(m.k_max), front), budget)


@pytest.mark.parametrize(
    ("variant", "budget", "millions"),
    [("1290m", 32, 1290.95), ("1290m", 2, 335.02), ("287m", 32, 287.09), ("160m", 32, 159.58)],
)
def test_a_language_model_of_the_paper(variant: str, budget: int, millions: float) -> None:
    assert count(recipe("bytes", variant), budget, vocab_size=258) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(("budget", "millions"), [(32, 10.657), (3, 3.04), (8, 4.35)])
def test_the_papers_keyword_model(budget: int, millions: float) -> None:
    assert count(recipe("keywords", "paper"), budget, input_size=40, num_labels=10) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "images", "pathfinder"])
def test_the_papers_long_range_arena_models_have_512_by_5(task: str) -> None:
    settings = recipe(task, "paper")
    assert (settings.model.hidden_size, settings.model.num_hidden_layers, settings.model.k_max) == (512, 5, 32)
    embedding = 258 * 512  # each task has another one; the count is of what is between
    assert (count(settings, 32, vocab_size=258) - embedding) / 1e6 == pytest.approx(53.15, abs=0.005)


@pytest.mark.parametrize(("budget", "parameters"), [(32, 711_444), (2, 241_554), (4, 272_880), (8, 335_532), (16, 460_836)])
def test_the_papers_decision_transformer(budget: int, parameters: int) -> None:
    settings = recipe("decision", None)
    with torch.device("meta"):
        front = Front(observations=17, actions=6, hidden_size=72, max_timestep=1000)
    # one head for the three of the original: actions, observations and return
    assert count(settings, budget, front, input_size=72, num_labels=6 + 17 + 1, pooled=False) == parameters
