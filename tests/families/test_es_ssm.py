"""ES-SSM: the paper's counts, a reference that is the equations, and engines that are the reference at every budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import prepare
from essm_deploy.bundle.vectors import engine_error
from essm_deploy.checkpoint import Checkpoint, write_checkpoint
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.reference import causal_convolution, forward, layer_norm, spectral
from essm_deploy.families.es_ssm.tensors import parameter_count, tensor_table
from essm_deploy.graph.builder import Dim
from tests.checkpoints import BYTES, KEYWORDS, make_checkpoint, random_bank, random_tensors

PARITY = 2e-6
"""fp32 rounding of a shallow model; torch eager makes 2e-7 to 1e-6 on the same inputs."""


def config_of(base: dict[str, Any], **changes: Any) -> EsSsmConfig:
    return EsSsmConfig.model_validate({**base, **changes})


@pytest.mark.parametrize(("budget", "millions"), [(2, 335.020), (4, 398.749), (6, 462.477), (32, 1290.950)])
def test_parameter_counts_are_the_papers(budget: int, millions: float) -> None:
    paper = config_of(
        BYTES,
        vocab_size=258,
        hidden_size=1152,
        num_hidden_layers=24,
        intermediate_size=4608,
        gate_hidden_size=576,
        seq_len=2048,
        k_max=32,
    )
    assert round(parameter_count(paper, budget) / 1e6, 3) == millions


def test_the_tensor_table_counts_what_the_formula_counts() -> None:
    config = config_of(KEYWORDS)
    sizes = sum(math.prod(spec.shape) for spec in tensor_table(config) if not spec.name.startswith("bank."))
    assert parameter_count(config, config.k_max) == sizes


def scalar_model(weights: dict[str, NDArray[Any]], config: EsSsmConfig, inputs: NDArray[Any]) -> NDArray[np.float64]:
    """The equations once more, token by token and channel by channel, for one row of features."""
    w = {name: np.asarray(t, np.float64) for name, t in weights.items()}
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))

    def linear(name: str, x: Any) -> Any:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        return (x - x.mean()) / math.sqrt(x.var() + config.layer_norm_eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    rows = [linear("input", x) for x in np.asarray(inputs, np.float64)]
    for i in range(config.num_hidden_layers):
        name = f"layers.{i}"
        u = [norm(f"{name}.norm1", r) for r in rows]
        for t in range(len(rows)):
            score = linear(f"{name}.spectral.gate.out", gelu(linear(f"{name}.spectral.gate.hidden", u[t])))
            for k in range(config.k_max):
                feature = sum(w["bank.filters"][k][s] * u[t - s] for s in range(t + 1))
                gate = 1 / (1 + math.exp(-score[k])) / math.sqrt(config.k_max)
                rows[t] = rows[t] + gate * (feature @ w[f"{name}.spectral.projection"][k])
        rows = [r + linear(f"{name}.ffn.down", gelu(linear(f"{name}.ffn.up", norm(f"{name}.norm2", r)))) for r in rows]
    return np.asarray(linear("head", np.mean([norm("norm", r) for r in rows], axis=0)))


def test_the_reference_is_the_equations() -> None:
    config = config_of(KEYWORDS, k_max=3, budgets=[3])
    weights = random_tensors({**KEYWORDS, "k_max": 3, "budgets": [3]})
    features = np.random.default_rng(0).standard_normal((1, config.seq_len, 10))
    expected = scalar_model(weights, config, features[0])
    np.testing.assert_allclose(forward(config, weights, features)[0], expected, rtol=1e-12)


def test_the_reference_of_a_budget_is_the_reference_of_the_slice(keywords: Path) -> None:
    checkpoint = open_checkpoint(keywords)
    family = family_of(checkpoint)
    config, piece = config_of(KEYWORDS), family.slice(checkpoint, 3)
    inputs = family.example_inputs(checkpoint, 2, seed=1)
    whole = forward(config, checkpoint.tensors, inputs["features"], inputs["lengths"], budget=3)
    np.testing.assert_array_equal(family.reference(piece, inputs)["logits"], whole)


def test_what_lies_beyond_the_length_of_a_row_does_not_matter(keywords: Path) -> None:
    checkpoint = open_checkpoint(keywords)
    features = np.random.default_rng(0).standard_normal((1, 24, 10))
    changed = features.copy()
    changed[:, 9:] = 7.0
    lengths = np.array([9])
    config = config_of(KEYWORDS)
    short = forward(config, checkpoint.tensors, features, lengths)
    np.testing.assert_allclose(forward(config, checkpoint.tensors, changed, lengths), short, rtol=1e-13)
    np.testing.assert_allclose(forward(config, checkpoint.tensors, features[:, :9]), short, rtol=1e-12)


def with_unit_gain(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """The weights with every layer's projections scaled so that its spectral branch keeps the 2-norm of its input.

    Fresh projections are a thousandth of that, and an engine with a wrong convolution would pass.
    """
    family = family_of(checkpoint)
    config = EsSsmConfig.model_validate(checkpoint.config)
    weights = dict(checkpoint.tensors)
    rng = np.random.default_rng(3)
    u = layer_norm(
        rng.standard_normal((1, config.seq_len, config.hidden_size)), weights, "layers.0.norm1", config.layer_norm_eps
    )
    for i in range(config.num_hidden_layers):
        name = f"layers.{i}.spectral"
        gain = np.linalg.norm(spectral(u, weights, name, config.k_max, causal_convolution)) / np.linalg.norm(u)
        weights[f"{name}.projection"] = (weights[f"{name}.projection"] / gain).astype(np.float32)
    assert family.model_type == "es_ssm"
    return weights


def worst_errors(checkpoint: Checkpoint, folder: Path, budgets: Iterable[int], batch: Dim = 1) -> dict[int, float]:
    """max ||y - ref|| / ||ref|| by budget, engines against the reference."""
    folder.mkdir()
    family = family_of(checkpoint)
    inputs = family.example_inputs(checkpoint, 3, seed=0)
    emitter = prepare(folder, checkpoint, [checkpoint.config["k_max"]], batch, BACKENDS["onnxruntime"])
    errors = {}
    for budget in budgets:
        expected = family.reference(family.slice(checkpoint, budget), inputs)
        errors[budget] = engine_error(folder, [], emitter.sequence(budget), inputs, expected)
    return errors


@pytest.mark.parametrize("base", [KEYWORDS, BYTES], ids=["classifier", "language model"])
@pytest.mark.parametrize("batch", [1, "batch"])
def test_every_budget_of_a_random_model_is_the_reference(tmp_path: Path, base: dict[str, Any], batch: int | str) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "model", base, quality=None))
    errors = worst_errors(checkpoint, tmp_path / "engines", range(1, 9), batch)
    assert max(errors.values()) <= PARITY, errors


@pytest.mark.parametrize("gain", ["trained", "unit"])
def test_every_budget_of_the_shipped_model_is_the_reference(shipped: Path, tmp_path: Path, gain: str) -> None:
    checkpoint = open_checkpoint(shipped)
    if gain == "unit":
        write_checkpoint(tmp_path / "unit", checkpoint.config, with_unit_gain(checkpoint), None, "")
        checkpoint = open_checkpoint(tmp_path / "unit")
    errors = worst_errors(checkpoint, tmp_path / "engines", range(1, 33))
    assert max(errors.values()) <= PARITY, errors


@pytest.mark.parametrize("gain", ["random", "unit"])
def test_a_long_sequence_is_cut_into_blocks_and_still_the_reference(tmp_path: Path, gain: str) -> None:
    changes = {"seq_len": 700, "k_max": 4, "budgets": [4]}
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "long", BYTES, quality=None, **changes))
    if gain == "unit":
        write_checkpoint(tmp_path / "unit", checkpoint.config, with_unit_gain(checkpoint), None, "")
        checkpoint = open_checkpoint(tmp_path / "unit")
    assert max(worst_errors(checkpoint, tmp_path / "engines", range(1, 5)).values()) <= PARITY


def test_a_wrong_filter_would_be_noticed(tmp_path: Path) -> None:
    """The parity test can fail: an engine of another bank is off by far more than the bound."""
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "model"))
    family = family_of(checkpoint)
    (tmp_path / "engines").mkdir()
    engine = prepare(tmp_path / "engines", checkpoint, [8], 1, BACKENDS["onnxruntime"]).sequence(8)
    inputs = family.example_inputs(checkpoint, 2, 0)
    other = {**checkpoint.tensors, "bank.filters": random_bank(8, 24, seed=9)}
    logits = forward(config_of(KEYWORDS), other, inputs["features"], inputs["lengths"])
    assert engine_error(tmp_path / "engines", [], engine, inputs, {"logits": logits}) > 100 * PARITY


def test_budgets_share_one_weights_file(keywords: Path, tmp_path: Path) -> None:
    emitter = prepare(tmp_path, open_checkpoint(keywords), [2, 8], 1, BACKENDS["onnxruntime"])
    small, large = emitter.sequence(2), emitter.sequence(8)
    assert "weights.bin" in small.files
    assert "weights.bin" in large.files
    assert len(list(tmp_path.glob("weights*"))) == 1
