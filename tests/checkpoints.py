"""Small random checkpoints for tests: sound in every respect, trained in none."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.checkpoint import write_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.slicing import bank_sha256
from essm_deploy.families.es_ssm.tensors import tensor_table
from essm_deploy.spectral.bank import hankel_bank

KEYWORDS: dict[str, Any] = {
    "model_type": "es_ssm",
    "format_version": "1.0",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "gate_hidden_size": 8,
    "input_size": 10,
    "id2label": {"0": "yes", "1": "no", "2": "stop"},
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "seq_len": 24,
    "k_max": 8,
    "budgets": [2, 4, 8],
    "gate": "sigmoid",
    "tie_word_embeddings": False,
    "overflow": "window",
    "task": "audio-classification",
    "bank": {"kind": "embedded", "sha256": "0" * 64},
}
BYTES: dict[str, Any] = {
    **{key: value for key, value in KEYWORDS.items() if key not in ("input_size", "id2label")},
    "vocab_size": 30,
    "tie_word_embeddings": True,
    "task": "text-generation",
}
QUALITY: dict[str, Any] = {
    "schema_version": "1.0",
    "metric": "accuracy",
    "direction": "maximize",
    "split": "test",
    "samples": 485,
    "budgets": {"2": 0.80, "4": 0.90, "8": 0.91},
}


def random_bank(channels: int, length: int, seed: int = 0) -> NDArray[np.float64]:
    """Orthonormal filters [channels, length] that decay, so that no two lags weigh the same."""
    rng = np.random.default_rng(seed)
    decaying = rng.standard_normal((length, channels)) * np.exp(-np.arange(length) / (length / 4))[:, None]
    return np.ascontiguousarray(np.linalg.qr(decaying)[0].T)


@functools.cache
def smooth_bank(channels: int, length: int) -> NDArray[np.float64]:
    """The exact Hankel filters: one small linear system makes them all."""
    return hankel_bank(length, channels, method="exact", cache=False).filters


def random_tensors(config: dict[str, Any], seed: int = 0, smooth: bool = False) -> dict[str, NDArray[Any]]:
    """Every tensor that the config implies; linear maps keep the variance, so that the spectral branch is exercised.

    `smooth` filters have a small realization, the others have none.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for spec in tensor_table(EsSsmConfig.model_validate(config)):
        if spec.name == "bank.filters":
            tensors[spec.name] = (smooth_bank if smooth else random_bank)(*spec.shape)
        elif spec.name == "bank.sigma":
            tensors[spec.name] = np.geomspace(0.3, 1e-6, spec.shape[0])
        elif "norm" in spec.name:
            tensors[spec.name] = (1 * spec.name.endswith("weight") + 0.1 * rng.standard_normal(spec.shape)).astype("f4")
        else:
            tensors[spec.name] = (rng.standard_normal(spec.shape) / np.sqrt(spec.shape[-1])).astype("f4")
    return tensors


def make_checkpoint(
    path: Path, base: dict[str, Any] = KEYWORDS, quality: Any = QUALITY, *, smooth: bool = False, **changes: Any
) -> Path:
    """Write a checkpoint with some config keys changed; the bank's hash is right."""
    config = {**base, **changes}
    tensors = random_tensors(config, smooth=smooth)
    config["bank"] = {**config["bank"], "sha256": bank_sha256(tensors["bank.filters"])}
    write_checkpoint(path, config, tensors, quality, "# A random model\n")
    return path
