"""The sequence engine: the whole input at once, from an empty past."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from essm_deploy.families.base import Signature
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.layers import DTYPES, LayerStack
from essm_deploy.graph.builder import Dim, GraphBuilder
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering


def input_port(config: EsSsmConfig, problem: ConvProblem) -> TensorInfo:
    """`tokens` [batch, length] or `features` [batch, length, input_size]."""
    if config.vocab_size is not None:
        return TensorInfo("tokens", "int64", (problem.batch, problem.length), maximum=config.vocab_size - 1)
    assert config.input_size is not None  # the config has one of the two
    return TensorInfo("features", "float32", (problem.batch, problem.length, config.input_size))


def signature(config: EsSsmConfig, problem: ConvProblem) -> Signature:
    """The input, `lengths` for pooled models, and `logits`."""
    ports = [input_port(config, problem)]
    shape: tuple[Dim, ...] = (problem.batch, problem.length, config.output_size)
    if config.pooled:
        ports.append(TensorInfo("lengths", "int64", (problem.batch,), maximum=problem.length))
        shape = (problem.batch, config.output_size)
    return Signature(tuple(ports), (TensorInfo("logits", "float32", shape),))


class SequenceModel(LayerStack):
    """One emission of the whole graph."""

    def __init__(self, config: EsSsmConfig, problem: ConvProblem, builder: GraphBuilder, lowering: Lowering) -> None:
        super().__init__(config, problem, builder)
        self.lowering = lowering

    def convolve(self, layer: int, tokens: str, gates: str) -> str:
        """By the lowering that was planned, the same for every layer."""
        return self.lowering.emit(self.b, self.problem, tokens, gates)

    def model(self) -> onnx.ModelProto:
        """The finished graph."""
        ports = signature(self.config, self.problem)
        names = [self.b.input(p.name, DTYPES[p.dtype], p.shape) for p in ports.inputs]
        rows = self.hidden(names[0])
        logits = self.head(self._pool(rows, names[1])) if self.config.pooled else self._every_position(rows)
        output = ports.outputs[0]
        self.b.output(output.name, logits, DTYPES[output.dtype], output.shape)
        return self.b.model()

    def _pool(self, rows: str, lengths: str) -> str:
        """Mean over the valid tokens as a product with a mask row, [batch, d]."""
        length = self.problem.length
        with self.b.scope("spectral"), self.b.scope("pool"):
            column = self.reshape(lengths, -1, 1, 1)
            positions = self.b.constant(np.arange(length, dtype=np.int64).reshape(1, 1, length), "positions")
            mask = self.b.op("Cast", self.b.op("Less", positions, column), to=TensorProto.FLOAT)
            total = self.b.op("MatMul", mask, self.tokens(rows))
            mean = self.b.op("Div", total, self.b.op("Cast", column, to=TensorProto.FLOAT))
        return self.reshape(mean, -1, self.config.hidden_size)

    def _every_position(self, rows: str) -> str:
        return self.reshape(self.head(rows), self.problem.free_batch, self.problem.length, self.config.output_size)
