"""The tensors of an ES-SSM checkpoint, in the order of the model. Linear weights are [out, in], as in torch."""

from __future__ import annotations

from collections.abc import Iterator

from essm_deploy.checkpoint import TensorSpec
from essm_deploy.families.es_ssm.config import EsSsmConfig


def tensor_table(config: EsSsmConfig) -> list[TensorSpec]:
    """Every tensor that the config implies; elastic ones have the channel index k as their leading axis."""
    return [*_input(config), *_layers(config), *_head(config), *_bank(config)]


def main_tensors(config: EsSsmConfig) -> frozenset[str]:
    """What is computed with in the main precision: all but norms, the gates' scores, the entrance of features, and the bank."""
    names = [spec.name for spec in [*_input(config), *_layers(config), *_head(config)]]
    return frozenset(name for name in names if not _always_float(name.split(".")))


def _always_float(parts: list[str]) -> bool:
    return parts[-2].startswith("norm") or parts[-3:-1] == ["gate", "out"] or parts[0] == "input"


def parameter_count(config: EsSsmConfig, budget: int) -> int:
    """Trained parameters at a budget K: per layer K d^2 + K d/2 + K + d^2/2 + d/2 + 8 d^2 + 9 d (d_gate = d/2, FFN 4 d)."""
    total = 0
    for spec in [*_input(config), *_layers(config), *_head(config)]:
        size = 1
        for axis, dim in enumerate(spec.shape):
            size *= min(dim, budget) if spec.elastic and axis == 0 else dim
        total += size
    return total


def _input(config: EsSsmConfig) -> Iterator[TensorSpec]:
    if config.vocab_size is not None:
        yield TensorSpec("embedding.weight", (config.vocab_size, config.hidden_size))
    elif config.input_size is not None:
        yield from _linear("input", config.hidden_size, config.input_size)


def _layers(config: EsSsmConfig) -> Iterator[TensorSpec]:
    d, k, gate, inner = config.hidden_size, config.k_max, config.gate_hidden_size, config.intermediate_size
    for i in range(config.num_hidden_layers):
        layer = f"layers.{i}"
        yield from _norm(f"{layer}.norm1", d)
        yield from _linear(f"{layer}.spectral.gate.hidden", gate, d)
        yield from _linear(f"{layer}.spectral.gate.out", k, gate, elastic=True)
        yield TensorSpec(f"{layer}.spectral.projection", (k, d, d), elastic=True)
        yield from _norm(f"{layer}.norm2", d)
        yield from _linear(f"{layer}.ffn.up", inner, d)
        yield from _linear(f"{layer}.ffn.down", d, inner)


def _head(config: EsSsmConfig) -> Iterator[TensorSpec]:
    yield from _norm("norm", config.hidden_size)
    if not config.tie_word_embeddings:
        yield from _linear("head", config.output_size, config.hidden_size)


def _bank(config: EsSsmConfig) -> Iterator[TensorSpec]:
    yield TensorSpec("bank.filters", (config.k_max, config.seq_len), "F64", elastic=True)
    yield TensorSpec("bank.sigma", (config.k_max,), "F64", elastic=True)


def _linear(name: str, out: int, inputs: int, elastic: bool = False) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, inputs), elastic=elastic)
    yield TensorSpec(f"{name}.bias", (out,), elastic=elastic)


def _norm(name: str, width: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (width,))
    yield TensorSpec(f"{name}.bias", (width,))
