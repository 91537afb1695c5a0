"""The precision policy's checker: the spectral island is float32, whatever the rest of the graph is.

The policy lives in the ONNX types, since strongly typed runtimes have nothing else. A node belongs to the island if
`spectral` is one of the parts of its name; the checker trusts no builder and reads the finished graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from essm_deploy.errors import BuildError

ISLAND = "spectral"

_FLOATING = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
    TensorProto.FLOAT4E2M1,
}


@dataclass(frozen=True)
class IslandReport:
    """What the checker saw: node and floating-tensor counts of the island."""

    nodes: int
    tensors: int


def check_island(model: onnx.ModelProto) -> IslandReport:
    """Prove that every floating tensor that an island node reads or writes is FLOAT.

    `model` must carry inferred types. A Cast at the border may read or write another type, and only on its outer side.
    BuildError names the node and the tensor, also when the island is empty or a type is unknown.
    """
    types = _value_types(model)
    inside = [node for node in model.graph.node if _in_island(node)]
    produced = {name for node in inside for name in node.output}
    consumed = {name for node in inside for name in node.input}
    seen: set[str] = set()
    for node in inside:
        for name in [*node.input, *node.output]:
            if name and not _border_cast(node, name, produced, consumed):
                _check_tensor(model.graph.name, node, name, types)
                seen.add(name)
    if not inside:
        raise BuildError(f"{model.graph.name}: no node under {ISLAND}/; the fp32 contract has nothing to hold")
    return IslandReport(len(inside), sum(types[name] in _FLOATING for name in seen))


def _in_island(node: onnx.NodeProto) -> bool:
    return ISLAND in node.name.split("/")


def _border_cast(node: onnx.NodeProto, name: str, produced: set[str], consumed: set[str]) -> bool:
    """A Cast's outer side: an input from outside the island, or an output that nothing inside reads."""
    if node.op_type != "Cast":
        return False
    return (name in node.input and name not in produced) or (name in node.output and name not in consumed)


def _check_tensor(graph: str, node: onnx.NodeProto, name: str, types: dict[str, int]) -> None:
    data_type = types.get(name)
    if data_type is None:
        raise BuildError(f"{graph}: the type of {name} (node {node.name}) is unknown, so fp32 cannot be proved")
    if data_type in _FLOATING and data_type != TensorProto.FLOAT:
        shown = TensorProto.DataType.Name(data_type)
        raise BuildError(f"{graph}: {name} (node {node.name}) is {shown}; the spectral island must be FLOAT")


def _value_types(model: onnx.ModelProto) -> dict[str, int]:
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info]}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return {name: data_type for name, data_type in types.items() if data_type != TensorProto.UNDEFINED}
