"""The stream engine: some tokens a call, a state in, a state out. And the anchor, which makes the state anew from a ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from essm_deploy.families.base import Signature
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.layers import DTYPES, LayerStack
from essm_deploy.families.es_ssm.sequence import input_port
from essm_deploy.graph.builder import Dim, GraphBuilder
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.spectral.lowerings.base import ConvProblem
from essm_deploy.spectral.lowerings.chunked_graph import Past
from essm_deploy.spectral.lowerings.streams import Recurrent, StreamLowering


class StreamModel(LayerStack):
    """One emission. State tensors are [layers, batch, rows, d]: two per graph, whatever the number of layers."""

    def __init__(self, config: EsSsmConfig, problem: ConvProblem, builder: GraphBuilder, lowering: StreamLowering) -> None:
        super().__init__(config, problem, builder)
        self.lowering = lowering
        self._past: dict[str, list[str]] = {}
        self._next: dict[str, list[str]] = {"next_state": [], "next_spare": [], "entering": []}

    def signature(self) -> Signature:
        """Inputs `tokens` or `features`, `state`, and what the overflow rule and the head need; outputs `next_...`."""
        inputs, outputs = [input_port(self.config, self.problem)], [self._logits_port()]
        for name in self._carried():
            port = TensorInfo(name, "float32", self._shape(name))
            inputs.append(port)
            outputs.append(TensorInfo(f"next_{name}", "float32", port.shape))
        if self.lowering.ring:
            inputs.append(TensorInfo("leaving", "float32", self._shape("leaving")))
            outputs.append(TensorInfo("entering", "float32", self._shape("leaving")))
        return Signature(tuple(inputs), tuple(outputs))

    def model(self) -> onnx.ModelProto:
        """The finished graph."""
        ports = self.signature()
        names = {p.name: self.b.input(p.name, DTYPES[p.dtype], p.shape) for p in ports.inputs}
        self._past = {name: self._by_layer(names[name]) for name in ("state", "spare", "leaving") if name in names}
        rows = self.hidden(ports.inputs[0].name)
        results = {name: self._joined(name, parts) for name, parts in self._next.items() if parts}
        results |= self._pooled(rows, names) if self.config.pooled else {"logits": self._every_position(rows)}
        for port in ports.outputs:
            self.b.output(port.name, results[port.name], DTYPES[port.dtype], port.shape)
        return self.b.model()

    def convolve(self, layer: int, tokens: str, gates: str) -> str:
        """Go on from the layer's state; keep what the next call and the ring need."""
        leaving = self._past["leaving"][layer] if self.lowering.ring else None
        past = Past(self._past["state"][layer], leaving)
        gated, after = self.lowering.emit(self.b, self.problem, tokens, gates, past)
        self._next["next_state"].append(after)
        if self.lowering.ring:
            self._next["entering"].append(tokens)
        if "spare" in self._past and isinstance(self.lowering, Recurrent):
            reserve = self.lowering.emit_state(self.b, self.problem, tokens, self._past["spare"][layer])
            self._next["next_spare"].append(reserve)
        return gated

    def _carried(self) -> list[str]:
        restart = self.config.overflow == "restart" and isinstance(self.lowering, Recurrent)
        pooled = ["pooled_sum", "pooled_count"] if self.config.pooled else []
        return ["state", *(["spare"] if restart else []), *pooled]

    def _shape(self, name: str) -> tuple[Dim, ...]:
        layers, d = self.config.num_hidden_layers, self.config.hidden_size
        if name == "leaving":
            return (layers, self.problem.batch, self.problem.length, d)
        if name in ("state", "spare"):
            return (layers, self.problem.batch, self.lowering.rows(self.problem), d)
        return (self.problem.batch, d if name == "pooled_sum" else 1)

    def _logits_port(self) -> TensorInfo:
        size, batch = self.config.output_size, self.problem.batch
        shape: tuple[Dim, ...] = (batch, size) if self.config.pooled else (batch, self.problem.length, size)
        return TensorInfo("logits", "float32", shape)

    def _by_layer(self, name: str) -> list[str]:
        """[layers, batch, rows, d] -> one [batch, 1, rows, d] a layer; at batch 1 the Split is all it takes."""
        layers, rows = self.config.num_hidden_layers, self._shape(name)[2]
        with self.b.scope("spectral"):
            parts = self.b.ops("Split", name, outputs=layers, axis=0, num_outputs=layers)
            if self.problem.batch == 1:
                return parts
            return [self.reshape(part, self.problem.free_batch, 1, int(rows), self.config.hidden_size) for part in parts]

    def _joined(self, name: str, parts: Sequence[str]) -> str:
        """The inverse of `_by_layer`, for the output of that name."""
        with self.b.scope("spectral"):
            if self.problem.batch != 1 or name == "entering":
                rows = self._shape("leaving" if name == "entering" else name.removeprefix("next_"))[2]
                shape = (1, self.problem.free_batch, int(rows), self.config.hidden_size)
                parts = [self.reshape(part, *shape) for part in parts]
            return parts[0] if len(parts) == 1 else self.b.op("Concat", *parts, axis=0)

    def _pooled(self, rows: str, names: dict[str, str]) -> dict[str, str]:
        """Running mean over every token since the reset, and the head on it."""
        d, length = self.config.hidden_size, self.problem.length
        with self.b.scope("spectral"), self.b.scope("pool"):
            ones = self.b.constant(np.ones((1, length), np.float32), "ones")
            added = self.reshape(self.b.op("MatMul", ones, self.tokens(rows)), self.problem.free_batch, d)
            total = self.b.op("Add", names["pooled_sum"], added)
            count = self.b.op("Add", names["pooled_count"], self.b.constant(np.full(1, length, np.float32), "count"))
            mean = self.b.op("Div", total, count)
        return {"logits": self.head(mean), "next_pooled_sum": total, "next_pooled_count": count}

    def _every_position(self, rows: str) -> str:
        return self.reshape(self.head(rows), self.problem.free_batch, self.problem.length, self.config.output_size)


def anchor_signature(config: EsSsmConfig, lowering: Recurrent, batch: Dim) -> Signature:
    """`ring` [layers, batch, L, d], oldest first -> `state` [layers, batch, r, d]."""
    layers, d = config.num_hidden_layers, config.hidden_size
    ring = TensorInfo("ring", "float32", (layers, batch, config.seq_len, d))
    state = TensorInfo("state", "float32", (layers, batch, lowering.realization.states, d))
    return Signature((ring,), (state,))


def anchor_model(config: EsSsmConfig, lowering: Recurrent, batch: Dim, builder: GraphBuilder) -> onnx.ModelProto:
    """One GEMM: float32 drifts along a stream that goes on past L, and the ring does not."""
    ports = anchor_signature(config, lowering, batch)
    ring = builder.input("ring", TensorProto.FLOAT, ports.inputs[0].shape)
    with builder.scope("spectral"):
        state = builder.op("MatMul", builder.constant(lowering.anchor_matrix(config.seq_len), "anchor"), ring)
    builder.output("state", state, TensorProto.FLOAT, ports.outputs[0].shape)
    return builder.model()
