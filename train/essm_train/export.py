"""A trained model as an elastic checkpoint: config, float32 weights, float64 bank, quality and model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.checkpoint import write_checkpoint
from essm_deploy.spectral.bank import Bank
from essm_train.model import EsSsm, ModelConfig
from essm_train.trainer import tensors_of


def export_checkpoint(
    path: Path,
    model: EsSsm,
    bank: Bank,
    budgets: Sequence[int],
    fields: Mapping[str, Any],
    quality: Mapping[str, Any],
    card: str,
) -> None:
    """Write the checkpoint directory; `fields` are the task's own config keys."""
    config = make_config(model.config, bank, budgets) | dict(fields)
    write_checkpoint(path, config, to_arrays(model, bank), quality, card)


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is a checkpoint, which a new one may replace."""
    return (path / "config.json").is_file() and (path / "model.safetensors").is_file()


def make_config(config: ModelConfig, bank: Bank, budgets: Sequence[int]) -> dict[str, Any]:
    """config.json without the task's keys."""
    source = {"vocab_size": config.vocab_size} if config.vocab_size is not None else {"input_size": config.input_size}
    return {
        "model_type": "es_ssm",
        "format_version": "1.0",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "gate_hidden_size": config.gate_hidden_size,
        **source,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": "gelu",
        "seq_len": config.seq_len,
        "k_max": config.k_max,
        "budgets": list(budgets),
        "gate": "sigmoid",
        "tie_word_embeddings": config.vocab_size is not None,
        "overflow": "window",
        "bank": {"kind": "exact" if bank.kind != "embedded" else "embedded", "sha256": bank.sha256},
    }


def to_arrays(model: EsSsm, bank: Bank) -> dict[str, npt.NDArray[Any]]:
    """The tensors by their names in the checkpoint: weights float32, the bank float64 and exactly as it was computed."""
    weights = {name: tensor.numpy() for name, tensor in tensors_of(model).items() if not name.startswith("bank.")}
    weights = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()}
    return {**weights, "bank.filters": np.asarray(bank.filters), "bank.sigma": np.asarray(bank.sigma)}
