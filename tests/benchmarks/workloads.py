"""The two models that are measured: random weights of sane scale in a real checkpoint, one seed, an exact Hankel bank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.checkpoint import Checkpoint, write_checkpoint
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.spectral.bank import hankel_bank
from tests.checkpoints import BYTES as BYTES_BASE
from tests.checkpoints import KEYWORDS as KEYWORDS_BASE
from tests.checkpoints import random_tensors

SEED = 20260122
Arrays = dict[str, np.ndarray]


def _sizes(width: int, layers: int, length: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": 4 * width,
        "gate_hidden_size": width // 2,
        "seq_len": length,
        "k_max": 32,
        "budgets": [2, 4, 8, 16, 32],
    }


WORKLOADS: dict[str, dict[str, Any]] = {
    "bytes": {**BYTES_BASE, **_sizes(256, 4, 2048), "vocab_size": 258},
    "keywords": {
        **KEYWORDS_BASE,
        **_sizes(64, 4, 100),
        "input_size": 40,
        "id2label": {str(i): f"word{i}" for i in range(10)},
    },
}
"""A byte-level language model (vocabulary 258, d 256, 4 layers, L 2048) and a keyword spotter (40 x 100 in, d 64, 4 layers)."""


def write_workload(directory: Path, name: str) -> Path:
    """The checkpoint of a workload in `directory`, and its input next to it, NAME.npz.

    Linear maps keep the variance of their input, and so do the spectral branches: the filters have unit norm, so that a
    branch weighs as much as an FFN and an error in it is seen.
    """
    config = dict(WORKLOADS[name])
    tensors = random_tensors(config, SEED)
    bank = hankel_bank(config["seq_len"], config["k_max"])
    tensors |= {"bank.filters": np.array(bank.filters), "bank.sigma": np.array(bank.sigma)}
    config["bank"] = {"kind": "exact", "sha256": bank.sha256}
    write_checkpoint(directory / name, config, tensors, None, f"# Random weights for tests/benchmarks, seed {SEED}\n")
    np.savez(directory / f"{name}.npz", **inputs_of(open_checkpoint(directory / name)))
    return directory / name


def inputs_of(checkpoint: Checkpoint) -> Arrays:
    """One input of full length, batch 1: what every contender gets."""
    return family_of(checkpoint).example_inputs(checkpoint, 1, SEED)


def reference_of(path: Path, budget: int) -> Arrays:
    """The float64 reference's outputs for `inputs_of`."""
    checkpoint = open_checkpoint(path)
    family = family_of(checkpoint)
    return family.reference(family.slice(checkpoint, budget), inputs_of(checkpoint))


def relative_error(output: np.ndarray, reference: np.ndarray) -> float:
    """||y - ref|| / ||ref|| in the 2-norm."""
    return float(np.linalg.norm(output.astype(np.float64).ravel() - reference.ravel()) / np.linalg.norm(reference))


if __name__ == "__main__":
    np.save(sys.argv[3], reference_of(Path(sys.argv[1]), int(sys.argv[2]))["logits"])
