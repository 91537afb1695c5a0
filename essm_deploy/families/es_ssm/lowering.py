"""ES-SSM as an ONNX graph of GEMMs: the whole sequence at once.

Activations stay in rows [batch * tokens, width], so that every linear map is one Gemm with torch's own [out, in] weights.
Nodes under `spectral/` are the fp32 island: the convolution and its constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from essm_deploy.errors import BuildError
from essm_deploy.families.base import Plan, Signature
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.graph.weights import Region, data_file
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.toeplitz import Toeplitz

_DTYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}

SHORT = 512
"""Up to this many tokens the convolution is one GEMM; beyond, blocks of 128 tokens keep the matrices in cache."""


def signature(config: EsSsmConfig, plan: Plan) -> Signature:
    """Inputs and outputs of the engine: `tokens` or `features`, `lengths` for pooled models, and `logits`."""
    ports = [_input_port(config, plan)]
    shape: tuple[int | str, ...] = (plan.batch, plan.length, config.output_size)
    if config.pooled:
        ports.append(TensorInfo("lengths", "int64", (plan.batch,), maximum=plan.length))
        shape = (plan.batch, config.output_size)
    return Signature(tuple(ports), (TensorInfo("logits", "float32", shape),))


def _input_port(config: EsSsmConfig, plan: Plan) -> TensorInfo:
    if config.vocab_size is not None:
        return TensorInfo("tokens", "int64", (plan.batch, plan.length), maximum=config.vocab_size - 1)
    assert config.input_size is not None  # the config has one of the two
    return TensorInfo("features", "float32", (plan.batch, plan.length, config.input_size))


def choose_lowering(plan: Plan, problem: ConvProblem) -> Lowering:
    """The lowering that the plan names, or the one for the length. BuildError if it cannot express the problem."""
    lowering = Toeplitz(problem.length if problem.length <= SHORT else 128)
    if plan.lowering not in (None, lowering.name):
        raise BuildError(f"lowering {plan.lowering!r} is unknown; known: {lowering.name}")
    refusal = lowering.refusal(problem)
    if refusal:
        raise BuildError(f"lowering {lowering.name}: {refusal}")
    return lowering


def lower(
    config: EsSsmConfig, filters: NDArray[np.float64], plan: Plan, weights: Mapping[str, Region], constants: Path
) -> onnx.ModelProto:
    """The graph at config.k_max; `filters` are [K, L]; large constants go to the new file `constants`."""
    with data_file(constants.parent, constants.name) as file:
        builder = GraphBuilder(f"es_ssm_k{config.k_max}", weights, file)
        problem = ConvProblem(filters, plan.length, config.hidden_size, plan.batch)
        return _Lowered(config, plan, builder, problem, choose_lowering(plan, problem)).model()


@dataclass(frozen=True)
class _Lowered:
    """One walk over the model. Row values are [batch * tokens, width]."""

    config: EsSsmConfig
    plan: Plan
    b: GraphBuilder
    problem: ConvProblem
    lowering: Lowering

    def model(self) -> onnx.ModelProto:
        ports = signature(self.config, self.plan)
        names = [self.b.input(p.name, _DTYPES[p.dtype], p.shape) for p in ports.inputs]
        rows = self._embed(names[0])
        for i in range(self.config.num_hidden_layers):
            with self.b.scope(f"layers.{i}"):
                rows = self._layer(f"layers.{i}", rows)
        rows = self._norm("norm", rows)
        logits = self._pool_and_classify(rows, names[1]) if self.config.pooled else self._every_position(rows)
        output = ports.outputs[0]
        self.b.output(output.name, logits, _DTYPES[output.dtype], output.shape)
        return self.b.model()

    def _embed(self, name: str) -> str:
        d = self.config.hidden_size
        if self.config.vocab_size is not None:
            table = self.b.weight("embedding.weight", (self.config.vocab_size, d))
            return self._reshape(self.b.op("Gather", table, name), -1, d)
        assert self.config.input_size is not None  # the config has one of the two
        flat = self._reshape(name, -1, self.config.input_size)
        return self._linear("input", flat, d, self.config.input_size)

    def _layer(self, name: str, residual: str) -> str:
        normed = self._norm(f"{name}.norm1", residual)
        residual = self.b.op("Add", residual, self._spectral(f"{name}.spectral", normed))
        normed = self._norm(f"{name}.norm2", residual)
        return self.b.op("Add", residual, self._ffn(f"{name}.ffn", normed))

    def _spectral(self, name: str, u: str) -> str:
        """Gate before projection: (features * gates)[tokens, K d] @ M[K d, d] is one GEMM."""
        k, d = self.config.k_max, self.config.hidden_size
        with self.b.scope("spectral"):
            tokens = self._reshape(u, self._batch, self.plan.length, d)
            features = self.lowering.emit(self.b, self.problem, tokens)
            features = self._reshape(features, -1, k, d)
        gated = self.b.op("Mul", features, self._gates(f"{name}.gate", u))
        projection = self.b.weight(f"{name}.projection", (k * d, d))
        return self.b.op("MatMul", self._reshape(gated, -1, k * d), projection)

    def _gates(self, name: str, u: str) -> str:
        """sigmoid(W2 GELU(W1 u + b1) + b2) / sqrt(K) as [tokens, K, 1]."""
        k, hidden = self.config.k_max, self.config.gate_hidden_size
        scores = self.b.op("Gelu", self._linear(f"{name}.hidden", u, hidden, self.config.hidden_size))
        scores = self.b.op("Sigmoid", self._linear(f"{name}.out", scores, k, hidden))
        scale = self.b.constant(np.array(1.0 / math.sqrt(k), np.float32), "inverse_sqrt_k")
        return self._reshape(self.b.op("Mul", scores, scale), -1, k, 1)

    def _ffn(self, name: str, x: str) -> str:
        d, inner = self.config.hidden_size, self.config.intermediate_size
        return self._linear(f"{name}.down", self.b.op("Gelu", self._linear(f"{name}.up", x, inner, d)), d, inner)

    def _pool_and_classify(self, rows: str, lengths: str) -> str:
        """Mean over the valid tokens as a product with a mask row, then the head."""
        d, tokens = self.config.hidden_size, self.plan.length
        with self.b.scope("pool"):
            column = self._reshape(lengths, -1, 1, 1)
            positions = self.b.constant(np.arange(tokens, dtype=np.int64).reshape(1, 1, tokens), "positions")
            mask = self.b.op("Cast", self.b.op("Less", positions, column), to=TensorProto.FLOAT)
            total = self.b.op("MatMul", mask, self._reshape(rows, self._batch, tokens, d))
            mean = self.b.op("Div", total, self.b.op("Cast", column, to=TensorProto.FLOAT))
        return self._linear("head", self._reshape(mean, -1, d), self.config.output_size, d)

    def _every_position(self, rows: str) -> str:
        d, size = self.config.hidden_size, self.config.output_size
        if self.config.tie_word_embeddings:
            logits = self.b.op("Gemm", rows, self.b.weight("embedding.weight", (size, d)), transB=1)
        else:
            logits = self._linear("head", rows, size, d)
        return self._reshape(logits, self._batch, self.plan.length, size)

    def _linear(self, name: str, x: str, out: int, inputs: int) -> str:
        weight = self.b.weight(f"{name}.weight", (out, inputs))
        return self.b.op("Gemm", x, weight, self.b.weight(f"{name}.bias", (out,)), transB=1)

    def _norm(self, name: str, x: str) -> str:
        width = (self.config.hidden_size,)
        scale, shift = self.b.weight(f"{name}.weight", width), self.b.weight(f"{name}.bias", width)
        return self.b.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=self.config.layer_norm_eps)

    def _reshape(self, value: str, *shape: int) -> str:
        return self.b.op("Reshape", value, self.b.ints(*shape))

    @property
    def _batch(self) -> int:
        """The batch as Reshape wants it: -1 where it is only known at run time."""
        return self.plan.batch if isinstance(self.plan.batch, int) else -1
