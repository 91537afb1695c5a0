"""What one call of a graph takes: operations, bytes and kernel launches, node by node, from the ONNX file and its shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import TensorProto

from essm_deploy.errors import BuildError

_FREE = {"Reshape", "Unsqueeze", "Squeeze", "Identity", "Shape", "Flatten", "Constant"}
"""Nodes that only rename: no runtime moves a byte for them."""

_OPERATIONS = {"Gelu": 20, "Erf": 15, "Softmax": 12, "Sigmoid": 10, "Tanh": 10, "LayerNormalization": 8, "Exp": 8, "Sin": 8}
"""Operations per element of what is not one: polynomial degrees of the usual implementations, to within a factor of two."""

_POINTWISE = {"Add", "Sub", "Mul", "Div", "Cast", "Gelu", "Sigmoid", "Tanh", "Less", "Neg", "Where"}

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_PARTIAL = ("Slice", "Gather", "Split")
"""Nodes that read as much as they write, however large their input is."""


@dataclass(frozen=True)
class NodeWork:
    """One node: floating-point operations, bytes read and written, whether it is a GEMM, and whether in half precision."""

    name: str
    op_type: str
    flops: float
    bytes: float
    gemm: bool
    half: bool


@dataclass(frozen=True)
class GraphWork:
    """A whole call. `weight_bytes` are stored with the graph, `live_bytes` is the most that is alive between two nodes."""

    nodes: tuple[NodeWork, ...]
    weight_bytes: int
    live_bytes: int

    @property
    def flops(self) -> float:
        """Of all nodes."""
        return sum(node.flops for node in self.nodes)

    @property
    def bytes(self) -> float:
        """Of all nodes."""
        return sum(node.bytes for node in self.nodes)


def graph_work(path: Path, batch: int = 1, fused: bool = False) -> GraphWork:
    """Walk the graph in `path` at that batch. BuildError if a shape cannot be inferred.

    `fused` is for compilers that do pointwise operators in the kernel of what they are applied to, where nobody else reads it.
    """
    graph = _inferred(path, batch).graph
    tensors = _Tensors(graph)
    walked = _fused(graph, tensors) if fused else [_node_work(node, tensors) for node in graph.node]
    nodes = tuple(work for work in walked if work is not None)
    return GraphWork(nodes, sum(tensors.nbytes(t.name) for t in graph.initializer), _live_bytes(graph, tensors))


class _Tensors:
    """Shape and element size of every value."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._name = graph.name
        self._known: dict[str, tuple[tuple[int, ...], int]] = {}
        for value in [*graph.input, *graph.output, *graph.value_info]:
            kind = value.type.tensor_type
            if all(d.HasField("dim_value") for d in kind.shape.dim) and kind.HasField("shape"):
                self._known[value.name] = tuple(d.dim_value for d in kind.shape.dim), kind.elem_type
        self.stored = {tensor.name for tensor in graph.initializer}
        self._known |= {tensor.name: (tuple(tensor.dims), tensor.data_type) for tensor in graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        """BuildError if nobody knows it."""
        if name not in self._known:
            raise BuildError(f"{self._name}: the shape of {name} is unknown, so its cost cannot be estimated")
        return self._known[name][0]

    def kind(self, name: str) -> int:
        """The ONNX element type."""
        self.shape(name)
        return self._known[name][1]

    def nbytes(self, name: str) -> int:
        """Of the whole tensor."""
        itemsize = 2 if self.kind(name) in _HALF else int(onnx.helper.tensor_dtype_to_np_dtype(self.kind(name)).itemsize)
        return math.prod(self.shape(name)) * itemsize


def _inferred(path: Path, batch: int) -> onnx.ModelProto:
    model = onnx.load(path, load_external_data=False)
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_value = batch
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _node_work(node: onnx.NodeProto, tensors: _Tensors) -> NodeWork | None:
    if node.op_type in _FREE:
        return None
    gemm = node.op_type in ("MatMul", "Gemm")
    half = tensors.kind(node.input[0]) in _HALF
    return NodeWork(node.name, node.op_type, _flops(node, tensors), _bytes(node, tensors), gemm, half)


def _fused(graph: onnx.GraphProto, tensors: _Tensors) -> list[NodeWork | None]:
    """Work by kernel: the last of a chain of pointwise nodes writes, nothing between them does."""
    readers = Counter(name for node in graph.node for name in node.input)
    kernels: list[NodeWork | None] = []
    owner: dict[str, int] = {}
    for node in graph.node:
        into = next((name for name in node.input if name in owner and readers[name] == 1), None)
        work = _node_work(node, tensors)
        if into is not None and (work is None or node.op_type in _POINTWISE):
            at = owner[into]
            before = kernels[at]
            if work is not None and before is not None:
                moved = before.bytes + work.bytes - 2 * tensors.nbytes(into)
                kernels[at] = replace(before, flops=before.flops + work.flops, bytes=moved)
        else:
            at = len(kernels)
            kernels.append(work)
        if kernels[at] is not None:
            owner |= dict.fromkeys(node.output, at)
    return kernels


def _flops(node: onnx.NodeProto, tensors: _Tensors) -> float:
    size = math.prod(tensors.shape(node.output[0]))
    if node.op_type == "MatMul":
        return 2.0 * size * tensors.shape(node.input[0])[-1]
    if node.op_type == "Gemm":
        rows = next((a.i for a in node.attribute if a.name == "transA"), 0)
        return 2.0 * size * tensors.shape(node.input[0])[0 if rows else 1]
    return float(size * _OPERATIONS.get(node.op_type, 1))


def _bytes(node: onnx.NodeProto, tensors: _Tensors) -> float:
    written = sum(tensors.nbytes(name) for name in node.output if name)
    if node.op_type in _PARTIAL:
        return 2.0 * written
    return float(written + sum(tensors.nbytes(name) for name in node.input if name))


def _live_bytes(graph: onnx.GraphProto, tensors: _Tensors) -> int:
    """Results alive at once, in the order of the graph; a renamed tensor is the same memory."""
    last = {name: index for index, node in enumerate(graph.node) for name in node.input}
    last |= {value.name: len(graph.node) for value in graph.output}
    ends: dict[int, list[int]] = {}
    alive = most = sum(tensors.nbytes(value.name) for value in graph.input)
    for index, node in enumerate(graph.node):
        for name, size in _new_values(node, tensors):
            alive += size
            ends.setdefault(last.get(name, index), []).append(size)
        most = max(most, alive)
        alive -= sum(ends.pop(index, []))
    return most


def _new_values(node: onnx.NodeProto, tensors: _Tensors) -> Iterator[tuple[str, int]]:
    if node.op_type not in _FREE:
        yield from ((name, tensors.nbytes(name)) for name in node.output if name)
