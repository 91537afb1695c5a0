"""The parts of the ES-SSM graph that do not care how time passes: rows in, rows out.

Activations stay in rows [batch * tokens, width], so that every linear map is one Gemm with torch's own [out, in] weights.
Nodes under `spectral/` are the fp32 island: the convolution, its state and its constants, the gates' scores and sigmoid, the
mean over time, and the entrance of features. Residual stream, norms and logits are float32 too; the other GEMMs, and what lies
between them, are in the main precision. Scores and entrance are small products, less than a thousandth of a model's work, in
which half precision costs most: a score of -2 rounded to fp16 is off by up to 1e-3, and so is its gate. At unit spectral gain
the two made up more than half of the error of a whole model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from onnx import TensorProto

from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem

DTYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class LayerStack(ABC):
    """Emits embedding, layers and head of one engine; a subclass says how the convolution is done."""

    def __init__(self, config: EsSsmConfig, problem: ConvProblem, builder: GraphBuilder) -> None:
        self.config, self.problem, self.b = config, problem, builder

    @abstractmethod
    def convolve(self, layer: int, tokens: str, gates: str) -> str:
        """Gated features of a layer: [batch, length, d] and [batch * length, K] -> [batch * length, K d]."""

    def hidden(self, inputs: str) -> str:
        """Rows after the final norm."""
        rows = self._embed(inputs)
        for i in range(self.config.num_hidden_layers):
            with self.b.scope(f"layers.{i}"):
                rows = self._layer(i, rows)
        return self._norm("norm", rows)

    def head(self, rows: str) -> str:
        """Logits of every row."""
        d, size = self.config.hidden_size, self.config.output_size
        if self.config.tie_word_embeddings:
            table = self.b.weight("embedding.weight", (size, d))
            return self.b.to_float(self.b.op("Gemm", self.b.to_main(rows), table, transB=1))
        return self.b.to_float(self._linear("head", self.b.to_main(rows), size, d))

    def tokens(self, rows: str) -> str:
        """[batch * length, d] -> [batch, length, d]."""
        return self.reshape(rows, self.problem.free_batch, self.problem.length, self.config.hidden_size)

    def reshape(self, value: str, *shape: int) -> str:
        """A Reshape to fixed sizes, one of which may be -1."""
        return self.b.op("Reshape", value, self.b.ints(*shape))

    def _embed(self, name: str) -> str:
        d = self.config.hidden_size
        if self.config.vocab_size is not None:
            table = self.b.weight("embedding.weight", (self.config.vocab_size, d))
            return self.b.to_float(self.reshape(self.b.op("Gather", table, name), -1, d))
        assert self.config.input_size is not None  # the config has one of the two
        with self.b.scope("spectral"), self.b.scope("input"):
            return self._linear("input", self.reshape(name, -1, self.config.input_size), d, self.config.input_size)

    def _layer(self, layer: int, residual: str) -> str:
        name = f"layers.{layer}"
        normed = self._norm(f"{name}.norm1", residual)
        residual = self.b.op("Add", residual, self._spectral(layer, normed))
        normed = self._norm(f"{name}.norm2", residual)
        return self.b.op("Add", residual, self._ffn(f"{name}.ffn", normed))

    def _spectral(self, layer: int, u: str) -> str:
        """Gate before projection: (features * gates)[tokens, K d] @ M[K d, d] is one GEMM."""
        k, d, name = self.config.k_max, self.config.hidden_size, f"layers.{layer}.spectral"
        gates = self._gates(f"{name}.gate", u)
        with self.b.scope("spectral"):
            gated = self.b.to_main(self.convolve(layer, self.tokens(u), gates))
        return self.b.to_float(self.b.op("MatMul", gated, self.b.weight(f"{name}.projection", (k * d, d))))

    def _gates(self, name: str, u: str) -> str:
        """sigmoid(W2 GELU(W1 u + b1) + b2) / sqrt(K) as [tokens, K]."""
        k, hidden = self.config.k_max, self.config.gate_hidden_size
        raised = self.b.op("Gelu", self._linear(f"{name}.hidden", self.b.to_main(u), hidden, self.config.hidden_size))
        with self.b.scope("spectral"):
            gates = self.b.op("Sigmoid", self._linear(f"{name}.out", self.b.to_float(raised), k, hidden))
            return self.b.op("Mul", gates, self.b.constant(np.array(1.0 / math.sqrt(k), np.float32), "inverse_sqrt_k"))

    def _ffn(self, name: str, x: str) -> str:
        d, inner = self.config.hidden_size, self.config.intermediate_size
        raised = self.b.op("Gelu", self._linear(f"{name}.up", self.b.to_main(x), inner, d))
        return self.b.to_float(self._linear(f"{name}.down", raised, d, inner))

    def _linear(self, name: str, x: str, out: int, inputs: int) -> str:
        """In the precision that x and the weights have."""
        weight = self.b.weight(f"{name}.weight", (out, inputs))
        return self.b.op("Gemm", x, weight, self.b.weight(f"{name}.bias", (out,)), transB=1)

    def _norm(self, name: str, x: str) -> str:
        width = (self.config.hidden_size,)
        scale, shift = self.b.weight(f"{name}.weight", width), self.b.weight(f"{name}.bias", width)
        return self.b.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=self.config.layer_norm_eps)
