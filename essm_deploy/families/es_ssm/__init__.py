"""ES-SSM, the Elastic Spectral State Space Model (arXiv 2601.22488), sigmoid-gate version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.checkpoint import Checkpoint, TensorSpec
from essm_deploy.errors import CheckpointError
from essm_deploy.families.base import Arrays, Lowered, Plan
from essm_deploy.families.es_ssm import reference
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.sequence import SequenceModel, signature
from essm_deploy.families.es_ssm.slicing import bank_sha256, slice_checkpoint
from essm_deploy.families.es_ssm.stream import StreamModel, anchor_model, anchor_signature
from essm_deploy.families.es_ssm.tensors import main_tensors, parameter_count, tensor_table
from essm_deploy.graph.builder import Dim, GraphBuilder
from essm_deploy.graph.weights import Region, data_file
from essm_deploy.schema import parse
from essm_deploy.spectral.lowerings.base import ConvProblem
from essm_deploy.spectral.lowerings.streams import Fir, Recurrent
from essm_deploy.spectral.planning import lawful_lowerings


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

    def main_tensors(self, checkpoint: Checkpoint) -> frozenset[str]:
        """All but norms, the gates' scores, the entrance of features, and the bank."""
        return main_tensors(self.config(checkpoint))

    def parameter_count(self, checkpoint: Checkpoint, budget: int) -> int:
        """Trained parameters at a budget."""
        return parameter_count(self.config(checkpoint), budget)

    def slice(self, checkpoint: Checkpoint, budget: int) -> Checkpoint:
        """A standalone checkpoint: a plain prefix of every channel-indexed tensor."""
        return slice_checkpoint(checkpoint, self.config(checkpoint), budget)

    def reference(self, checkpoint: Checkpoint, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Float64 logits at the checkpoint's own k_max."""
        config = self.config(checkpoint)
        values = inputs["tokens" if config.vocab_size is not None else "features"]
        return {"logits": reference.forward(config, checkpoint.tensors, values, inputs.get("lengths"))}

    def stream_chunks(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """One token; and 64 bytes of a prompt, or ten frames of a clip (100 ms at a hop of 10 ms)."""
        config = self.config(checkpoint)
        return (1, min(64 if config.generative else 10, config.seq_len))

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

    def problem(self, checkpoint: Checkpoint, plan: Plan) -> ConvProblem:
        """The bank over the tokens of one call."""
        config = self.config(checkpoint)
        filters, sigma = (np.asarray(checkpoint.tensor(f"bank.{name}"), np.float64) for name in ("filters", "sigma"))
        return ConvProblem(filters, plan.length, config.hidden_size, plan.batch, sigma)

    def lower(self, checkpoint: Checkpoint, plan: Plan, weights: Mapping[str, Region], constants: Path) -> Lowered:
        """The sequence or stream engine at the checkpoint's own k_max."""
        config, problem = self.config(checkpoint), self.problem(checkpoint, plan)
        lowering = plan.lowering or lawful_lowerings(problem)[0]
        with data_file(constants.parent, constants.name) as file:
            builder = GraphBuilder(f"es_ssm_k{config.k_max}", weights, file, plan.precision)
            if isinstance(lowering, (Recurrent, Fir)):
                stream = StreamModel(config, problem, builder, lowering)
                return Lowered(stream.model(), stream.signature())
            return Lowered(SequenceModel(config, problem, builder, lowering).model(), signature(config, problem))

    def anchor(self, checkpoint: Checkpoint, lowering: Recurrent, batch: Dim, constants: Path) -> Lowered:
        """One GEMM over the ring."""
        config = self.config(checkpoint)
        with data_file(constants.parent, constants.name) as file:
            model = anchor_model(config, lowering, batch, GraphBuilder("es_ssm_anchor", {}, file))
            return Lowered(model, anchor_signature(config, lowering, batch))


FAMILY = EsSsm()
