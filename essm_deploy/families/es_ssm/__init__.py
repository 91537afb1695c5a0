"""ES-SSM, the Elastic Spectral State Space Model (arXiv 2601.22488), sigmoid-gate version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from essm_deploy.checkpoint import Checkpoint, TensorSpec
from essm_deploy.errors import CheckpointError
from essm_deploy.families.base import Arrays, Plan, Signature
from essm_deploy.families.es_ssm import lowering, reference
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.slicing import bank_sha256, slice_checkpoint
from essm_deploy.families.es_ssm.tensors import parameter_count, tensor_table
from essm_deploy.graph.weights import Region
from essm_deploy.schema import parse


class EsSsm:
    """The family object that the pipeline calls; see `families.base.Family`."""

    model_type = "es_ssm"

    def config(self, checkpoint: Checkpoint) -> EsSsmConfig:
        """Parse config.json and compare the bank's hash with the filters in the file."""
        config = parse(EsSsmConfig, dict(checkpoint.config), str(checkpoint.path / "config.json"), CheckpointError)
        filters = checkpoint.tensors.get("bank.filters")
        if filters is not None and bank_sha256(filters) != config.bank.sha256:
            raise CheckpointError(
                f"{checkpoint.path}: bank.filters do not hash to bank.sha256 of config.json; the model was trained on "
                "another bank, or the file was changed"
            )
        return config

    def tensor_table(self, checkpoint: Checkpoint) -> list[TensorSpec]:
        """Every tensor that the config implies."""
        return tensor_table(self.config(checkpoint))

    def parameter_count(self, checkpoint: Checkpoint, budget: int) -> int:
        """Trained parameters at a budget."""
        return parameter_count(self.config(checkpoint), budget)

    def slice(self, checkpoint: Checkpoint, budget: int) -> Checkpoint:
        """A standalone checkpoint: a plain prefix of every channel-indexed tensor."""
        return slice_checkpoint(checkpoint, self.config(checkpoint), budget)

    def signature(self, checkpoint: Checkpoint, plan: Plan) -> Signature:
        """`tokens` or `features`, `lengths` for classifiers; `logits`."""
        return lowering.signature(self.config(checkpoint), plan)

    def reference(self, checkpoint: Checkpoint, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Float64 logits at the checkpoint's own k_max."""
        config = self.config(checkpoint)
        values = inputs["tokens" if config.vocab_size is not None else "features"]
        return {"logits": reference.forward(config, checkpoint.tensors, values, inputs.get("lengths"))}

    def example_inputs(self, checkpoint: Checkpoint, count: int, seed: int) -> Arrays:
        """Standard normal features or uniform token ids; of a classifier's rows, every second one is shorter."""
        config, rng = self.config(checkpoint), np.random.default_rng(seed)
        if config.vocab_size is not None:
            arrays: Arrays = {"tokens": rng.integers(0, config.vocab_size, (count, config.seq_len))}
        else:
            shape = (count, config.seq_len, config.input_size or 0)
            arrays = {"features": rng.standard_normal(shape).astype(np.float32)}
        if config.pooled:
            full = np.full(count, config.seq_len)
            arrays["lengths"] = np.where(np.arange(count) % 2, rng.integers(1, config.seq_len + 1, count), full)
        return arrays

    def lower(self, checkpoint: Checkpoint, plan: Plan, weights: Mapping[str, Region], constants: Path) -> onnx.ModelProto:
        """The ONNX graph at the checkpoint's own k_max."""
        filters = np.asarray(checkpoint.tensor("bank.filters"), np.float64)
        return lowering.lower(self.config(checkpoint), filters, plan, weights, constants)


FAMILY = EsSsm()
