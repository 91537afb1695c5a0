"""The precision policy's checkers, which trust no builder and read the finished graph.

    check_island   the spectral island is float32, whatever the rest of the graph is
    check_policy   GEMMs outside it compute in the main precision; norms, residual sums, inputs and outputs are float32

The policy lives in the ONNX types, since strongly typed runtimes have nothing else. A node belongs to the island if
`spectral` is one of the parts of its name: the convolution, its state, the gates' scores and sigmoid, the mean over time, and
what little else a family cannot afford to round.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from essm_deploy.errors import BuildError
from essm_deploy.graph.dtypes import MAIN_TYPES, Precision

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


@dataclass(frozen=True)
class PolicyReport:
    """What the checker saw outside the island: products in the main precision, float32 norms and sums."""

    products: int
    norms: int
    sums: int


def in_island(name: str) -> bool:
    """Whether the node of that name is part of the fp32 island."""
    return ISLAND in name.split("/")


def check_island(model: onnx.ModelProto) -> IslandReport:
    """Prove that every floating tensor that an island node reads or writes is FLOAT.

    `model` must carry inferred types. A Cast at the border may read or write another type, and only on its outer side.
    BuildError names the node and the tensor, also when the island is empty or a type is unknown.
    """
    types = value_types(model)
    inside = [node for node in model.graph.node if in_island(node.name)]
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


def check_policy(model: onnx.ModelProto, precision: Precision) -> PolicyReport:
    """Prove what `--precision` promises of the rest of the graph. `model` must carry inferred types.

    Outside the island every MatMul and Gemm computes in the main type; LayerNormalization and Add (the residual stream) are
    FLOAT; so are the graph's floating inputs and outputs; and there is no third floating type. No weight is cast when the
    graph runs, and what enters the island has not been rounded on its way: Casts at its border are its own.
    BuildError names the node that breaks a rule.
    """
    return _PolicyCheck(model, MAIN_TYPES[precision]).run()


class _PolicyCheck:
    def __init__(self, model: onnx.ModelProto, main: int) -> None:
        self.graph, self.main, self.types = model.graph, main, value_types(model)
        self.stored = {tensor.name for tensor in model.graph.initializer}
        self.outer_casts = {n.output[0] for n in model.graph.node if n.op_type == "Cast" and not in_island(n.name)}
        self.counts = {"products": 0, "norms": 0, "sums": 0}

    def run(self) -> PolicyReport:
        for port in [*self.graph.input, *self.graph.output]:
            self._expect("graph input or output", port.name, "this tensor", {TensorProto.FLOAT})
        for node in self.graph.node:
            if node.op_type == "Cast" and node.input[0] in self.stored:
                raise BuildError(f"{self.graph.name}: {node.name} casts the weight {node.input[0]} at run time")
            if in_island(node.name):
                self._check_entrance(node)
            else:
                self._check_outer(node)
        return PolicyReport(**self.counts)

    def _check_outer(self, node: onnx.NodeProto) -> None:
        role = {"MatMul": "products", "Gemm": "products", "LayerNormalization": "norms", "Add": "sums"}.get(node.op_type)
        allowed = {TensorProto.FLOAT, self.main}
        if role is not None:
            self.counts[role] += 1
            allowed = {self.main} if role == "products" else {TensorProto.FLOAT}
        for name in [*node.input, *node.output]:
            if name:
                self._expect(f"node {node.name}", name, node.op_type, allowed)

    def _check_entrance(self, node: onnx.NodeProto) -> None:
        rounded = self.outer_casts.intersection(node.input)
        if rounded:
            name = sorted(rounded)[0]
            raise BuildError(f"{self.graph.name}: {name} enters the island at {node.name} through a Cast outside of it")

    def _expect(self, where: str, name: str, what: str, allowed: set[int]) -> None:
        found = self.types.get(name)
        if found is None:
            raise BuildError(f"{self.graph.name}: the type of {name} ({where}) is unknown, so the policy cannot be proved")
        if found in _FLOATING and found not in allowed:
            wanted = " or ".join(_shown(kind) for kind in sorted(allowed))
            raise BuildError(f"{self.graph.name}: {name} ({where}) is {_shown(found)}; {what} must be {wanted}")


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every value whose type is known."""
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info]}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return {name: data_type for name, data_type in types.items() if data_type != TensorProto.UNDEFINED}


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
        raise BuildError(f"{graph}: {name} (node {node.name}) is {_shown(data_type)}; the spectral island must be FLOAT")


def _shown(data_type: int) -> str:
    return str(TensorProto.DataType.Name(data_type))
