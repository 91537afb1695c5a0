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

FRONT_FILE = "front.safetensors"  # what the app applies itself, before the engine: see essm_train.tasks


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
    front = front_arrays(model)
    write_checkpoint(path, config, to_arrays(model, bank), quality, card, {FRONT_FILE: front} if front else {})


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
        "tie_word_embeddings": config.tied,
        "overflow": "window",
        "bank": {"kind": "exact" if bank.kind != "embedded" else "embedded", "sha256": bank.sha256},
    }


def to_arrays(model: EsSsm, bank: Bank) -> dict[str, npt.NDArray[Any]]:
    """The tensors by their names in the checkpoint: weights float32, the bank float64 and exactly as it was computed.

    Behind a front the input is the identity, for the front's outputs are what the first layer sees.
    """
    arrays = {name: array for name, array in _floats(model).items() if not name.startswith(("bank.", "front."))}
    if model.front is not None:
        d = model.config.hidden_size
        arrays |= {"input.weight": np.eye(d, dtype=np.float32), "input.bias": np.zeros(d, np.float32)}
    return {**arrays, "bank.filters": np.asarray(bank.filters), "bank.sigma": np.asarray(bank.sigma)}


def front_arrays(model: EsSsm) -> dict[str, npt.NDArray[Any]]:
    """The front's tensors by their names in it; none where there is no front."""
    return {name.removeprefix("front."): array for name, array in _floats(model).items() if name.startswith("front.")}


def _floats(model: EsSsm) -> dict[str, npt.NDArray[Any]]:
    state = model.state_dict().items()
    return {name: np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float32) for name, tensor in state}
