"""slice(K): a budget is a prefix of every channel-indexed tensor."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import UsageError
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.tensors import tensor_table


def slice_checkpoint(checkpoint: Checkpoint, config: EsSsmConfig, budget: int) -> Checkpoint:
    """The checkpoint cut to `budget` channels: views, no copies. 1/sqrt(K) is not folded in, so the bytes stay equal.

    k_max becomes the budget, the bank is hashed anew, and budgets and quality keep what is not above it.
    """
    if not 1 <= budget <= config.k_max:
        raise UsageError(f"{checkpoint.path}: budget {budget} is out of range; expected 1 to {config.k_max}")
    elastic = {spec.name for spec in tensor_table(config) if spec.elastic}
    tensors = {name: t[:budget] if name in elastic else t for name, t in checkpoint.tensors.items()}
    raw = {
        **checkpoint.config,
        "k_max": budget,
        "budgets": [k for k in config.budgets if k < budget] + [budget],
        "bank": {**checkpoint.config["bank"], "sha256": bank_sha256(tensors["bank.filters"])},
    }
    return replace(checkpoint, config=raw, tensors=tensors, quality=_slice_quality(checkpoint.quality, budget))


def bank_sha256(filters: NDArray[Any]) -> str:
    """Hash of the little-endian float64 bytes of the filters, [K, L] in C order."""
    return hashlib.sha256(np.ascontiguousarray(filters, dtype="<f8").tobytes()).hexdigest()


def _slice_quality(quality: Any, budget: int) -> dict[str, Any] | None:
    if quality is None:
        return None
    kept = {k: v for k, v in quality.get("budgets", {}).items() if int(k) <= budget}
    return {**quality, "budgets": kept}
