"""The Transformer++ is one: causal, rotary, without biases, of the size that it is meant to have, and it learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from essm_deploy.errors import UsageError
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.tensors import parameter_count as compiled_count
from essm_deploy.spectral.bank import Bank
from essm_train.baselines.matching import RATIO, elastic_parameters, match
from essm_train.baselines.transformer import HEADS, Attention, Rotary, Transformer, parameter_count
from essm_train.export import make_config
from essm_train.model import ModelConfig
from essm_train.settings import Settings, load_settings
from essm_train.tasks import Batch
from essm_train.trainer import Run, train

LENGTH, HEAD_SIZE = 24, 8
STUDY = ModelConfig(32, 3, 100, 32, input_size=40, num_labels=10)
PAPER = ModelConfig(256, 4, 100, 32, input_size=40, num_labels=10)


def transformer(width: int = 16, **changes: object) -> Transformer:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": 3, "seq_len": LENGTH, "input_size": 7, "num_labels": 5}
    return Transformer(ModelConfig(**{**sizes, **changes}), 20).eval()


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("time", [1, 9, LENGTH])
def test_it_maps_vectors_of_any_length_to_scores_whatever_the_budget(time: int) -> None:
    model, inputs = transformer(), noise(3, time, 7)
    scores = model(inputs)
    assert scores.shape == (3, 5)
    assert torch.equal(model(inputs, None, 4), scores)


def test_what_comes_after_a_clips_end_changes_nothing() -> None:
    model, inputs, lengths = transformer(), noise(2, LENGTH, 7), torch.tensor([9, 17])
    before = model(inputs, lengths)
    inputs[0, 9:], inputs[1, 17:] = 50.0, -50.0
    assert torch.equal(model(inputs, lengths), before)
    inputs[0, 8] += 1.0
    assert not torch.allclose(model(inputs, lengths)[0], before[0])


@given(st.integers(0, LENGTH - 1))
def test_attention_sees_the_past_and_never_the_future(moved: int) -> None:
    torch.manual_seed(0)
    attention, rotary = Attention(16), Rotary(16 // HEADS, LENGTH)
    x = noise(1, LENGTH, 16)
    before = attention(x, rotary)
    x[:, moved] += 1.0
    change = (attention(x, rotary) - before).abs().amax(dim=(0, 2))
    assert torch.equal(change[:moved], torch.zeros(moved))
    assert (change[moved:] > 0.0).all()


def test_attention_equals_the_sum_over_positions_written_out() -> None:
    torch.manual_seed(0)
    width, size = 16, 16 // HEADS
    attention, rotary, x = Attention(width), Rotary(size, LENGTH), noise(2, LENGTH, width)
    got = attention(x, rotary).detach().double().numpy()
    rows = x.double().numpy() @ attention.inward.weight.detach().double().numpy().T
    mixed = np.zeros((2, LENGTH, width))
    for b, h, t in np.ndindex(2, HEADS, LENGTH):
        q, k, v = (rows[b, : t + 1, part * width + h * size :][:, :size] for part in range(3))
        scores = np.array([turned(q[t], t) @ turned(k[s], s) for s in range(t + 1)]) / np.sqrt(size)
        chances = np.exp(scores - scores.max())
        mixed[b, t, h * size : (h + 1) * size] = chances @ v / chances.sum()
    wanted = mixed @ attention.outward.weight.detach().double().numpy().T
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-6  # float32 against float64


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """The rotation as complex numbers: pair i is x_i + j x_{i + n/2}."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * position * 10000.0 ** (-2.0 * np.arange(half) / len(x)))
    return np.concatenate([pairs.real, pairs.imag])


def product(q: torch.Tensor, k: torch.Tensor, at: int, to: int) -> float:
    """q·k when q stands at one position and k at another."""
    rotary = Rotary(HEAD_SIZE, LENGTH)
    rows = [rotary(x.expand(LENGTH, HEAD_SIZE)).double() for x in (q, k)]
    return float(rows[0][at] @ rows[1][to])


@given(st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1), st.integers(0, 9))
def test_a_rotary_product_depends_on_the_distance_alone(at: int, to: int, by: int, seed: int) -> None:
    q, k = noise(HEAD_SIZE, seed=seed), noise(HEAD_SIZE, seed=seed + 100)
    by = min(by, LENGTH - 1 - max(at, to))
    scale = float(q.norm() * k.norm())
    assert product(q, k, at, to) == pytest.approx(product(q, k, at + by, to + by), abs=1e-5 * scale)


def test_a_rotary_product_does_depend_on_the_distance() -> None:
    q = noise(HEAD_SIZE)
    values = [product(q, q, LENGTH - 1, to) for to in range(LENGTH)]
    assert max(values) == values[-1] == pytest.approx(float(q.double() @ q.double()), rel=1e-5)
    assert values[-2] < 0.99 * values[-1]


def test_only_the_entrance_and_the_head_have_biases() -> None:
    biases = {name for name, _ in transformer().named_parameters() if "bias" in name}
    assert biases == {"input.bias", "head.bias"}


@pytest.mark.parametrize("width", [8, 16, 40])
def test_the_count_of_parameters_is_the_models(width: int) -> None:
    model = transformer(width)
    assert sum(p.numel() for p in model.parameters()) == parameter_count(model.config, 20)


def test_the_operations_of_a_step_are_those_of_its_linears() -> None:
    model = transformer()
    linears = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "head"]
    assert model.step_flops(100) == 6 * 100 * sum(m.weight.numel() for m in linears)


@pytest.mark.parametrize(
    "wrong",
    [{"width": 14}, {"pooled": False}, {"num_labels": 0, "input_size": None, "vocab_size": 9}],
)
def test_a_config_that_is_none_of_its_kind_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected a multiple of 4|takes vectors"):
        transformer(**wrong)


@pytest.mark.parametrize("config", [STUDY, PAPER])
@pytest.mark.parametrize("budget", [1, 2, 3, 5, *range(4, 33, 4)])
def test_a_match_is_the_nearest_of_its_width(config: ModelConfig, budget: int) -> None:
    found = match(config, budget)
    with torch.device("meta"):
        model = Transformer(found.config(config), found.intermediate_size)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert model.config.num_hidden_layers == config.num_hidden_layers
    for other in (-1, 1):
        beside = parameter_count(found.config(config), found.intermediate_size + other)
        assert abs(beside - found.target) >= abs(found.parameters - found.target)
    assert abs(found.percent) < 0.5  # the paper allows 5 %
    assert found.percent == pytest.approx(100 * (found.parameters - found.target) / found.target)
    assert RATIO / 2 < found.intermediate_size / found.width < 2 * RATIO


@pytest.mark.parametrize("budget", [1, 4, 8, 16, 32])
def test_the_target_is_what_the_compiler_counts(budget: int) -> None:
    bank = Bank(np.zeros((32, 100)), np.zeros(32), "embedded")
    fields = {"task": "audio-classification", "id2label": {str(i): f"word {i}" for i in range(10)}}
    config = EsSsmConfig.model_validate(make_config(STUDY, bank, [2, 32]) | fields)
    assert elastic_parameters(STUDY, budget) == match(STUDY, budget).target == compiled_count(config, budget)


def test_a_model_too_small_to_match_is_refused() -> None:
    with pytest.raises(UsageError, match="of 1 layers is as small"):
        match(ModelConfig(2, 1, LENGTH, 4, input_size=7, num_labels=5), 1)


class Order:
    """A task that order alone decides: is the one step that is +3 before or after the one that is -3?"""

    name, metric, direction, steps_per_epoch = "order", "accuracy", "maximize", 20
    model_config = ModelConfig(16, 2, 12, 4, input_size=3, num_labels=2, dropout=0.0, drop_path=0.1)

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at

    def batch(self, step: int, *_: object) -> Batch:
        if step == self.stop_at:
            raise KeyboardInterrupt
        rng = np.random.default_rng(step)
        inputs, targets = 0.1 * rng.standard_normal((32, 12, 3)), rng.integers(2, size=32)
        for row, target in enumerate(targets):
            first, second = np.sort(rng.choice(12, 2, replace=False))
            inputs[row, [first, second], 0] = (3.0, -3.0) if target else (-3.0, 3.0)
        return Batch(torch.from_numpy(inputs).float(), None, torch.from_numpy(targets))

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, targets)

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        batch = self.batch(10_000)
        was_training = model.training
        accuracy = float((model.eval()(batch.inputs, None, budget).argmax(1) == batch.targets).float().mean())
        model.train(was_training)
        return accuracy


RECIPE = """
[model]
k_max = 4
[budgets]
trained = [4]
sampled = false
[optimizer]
lr = 1e-2
[train]
epochs = 3
ema = 0.9
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return load_settings("keywords", tmp_path / "recipe.toml")


def test_the_trainer_teaches_it_and_goes_on_where_it_was_killed(settings: Settings, tmp_path: Path) -> None:
    def fresh() -> Transformer:
        torch.manual_seed(0)
        return Transformer(Order.model_config, 24)

    whole = train(fresh(), Order(), settings, Run(tmp_path / "whole"))
    assert Order().evaluate(whole, "test", 4) > 0.9
    pace = json.loads((tmp_path / "whole" / "log.jsonl").read_text().splitlines()[Order.steps_per_epoch])
    assert pace["flops_per_second"] / pace["tokens_per_second"] == pytest.approx(whole.step_flops(1), rel=1e-3)
    assert Order().evaluate(fresh(), "test", 4) < 0.7
    with pytest.raises(KeyboardInterrupt):
        train(fresh(), Order(stop_at=50), settings, Run(tmp_path / "parts"))
    again = train(fresh(), Order(), settings, Run(tmp_path / "parts"))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))
