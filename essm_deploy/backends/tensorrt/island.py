"""The proof that TensorRT will compute the spectral island in fp32, read from its own network after parsing.

The network is strongly typed, so a tensor's type is the type that it is computed in. TensorRT names the ONNX node that a layer
comes from in the layer's metadata; a layer that the parser added for itself has none, and belongs to the island if it sits
between two layers of the island.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from essm_deploy.errors import BuildError
from essm_deploy.graph.precision import in_island

_ORIGIN = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_FLOATING = ("FLOAT", "HALF", "BF16", "FP8", "FP4", "E8M0")
_COMPUTES = ("MatMul", "Gemm", "Mul", "Add", "Sub", "Div")
"""Operators that cannot vanish: their absence would mean that the walk has missed them."""


@dataclass(frozen=True)
class IslandProof:
    """How many ONNX nodes, TensorRT layers and floating tensors were looked at; all of the last are FLOAT."""

    nodes: int
    layers: int
    tensors: int
    dtype: str = "FLOAT"

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def prove_island(graph: Path, network: Any) -> IslandProof:
    """Walk the network that was parsed from `graph`. BuildError names the layer and the tensor that is not FLOAT."""
    nodes = island_nodes(graph)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    inside = _inside(layers, nodes)
    found = {origin for index in inside for origin in origins(layers[index]) if origin in nodes}
    lost = sorted(name for name, kind in nodes.items() if kind in _COMPUTES and name not in found)
    if lost or not inside:
        missing = lost[0] if lost else "the island"
        raise BuildError(f"{graph.name}: TensorRT's network does not show {missing}, so fp32 cannot be proved")
    written = {tensor.name for index in inside for tensor in _outputs(layers[index])}
    read = {tensor.name for index in inside for tensor in _inputs(layers[index])}
    seen = {name for index in inside for name in _checked(graph, layers[index], written, read)}
    return IslandProof(len(found), len(inside), len(seen))


def origins(layer: Any) -> list[str]:
    """The ONNX nodes that a layer comes from."""
    return _ORIGIN.findall(layer.metadata or "")


def island_nodes(graph: Path) -> dict[str, str]:
    """The operators of the island's nodes by name."""
    model = onnx.load(graph, load_external_data=False)
    return {node.name: node.op_type for node in model.graph.node if in_island(node.name)}


def _inside(layers: list[Any], nodes: dict[str, str]) -> set[int]:
    """Indices of the island's layers; helpers are added until nothing changes."""
    inside = {index for index, layer in enumerate(layers) if any(origin in nodes for origin in origins(layer))}
    helpers = {index for index, layer in enumerate(layers) if not origins(layer)}
    while True:
        written = {tensor.name for index in inside for tensor in _outputs(layers[index])}
        read = {tensor.name for index in inside for tensor in _inputs(layers[index])}
        added = {i for i in helpers - inside if _between(layers[i], written, read)}
        if not added:
            return inside
        inside |= added


def _between(layer: Any, written: set[str], read: set[str]) -> bool:
    """A helper on a path inside, or a constant that only the island can be reading through it."""
    leads_in = any(tensor.name in read for tensor in _outputs(layer))
    inputs = [tensor.name for tensor in _inputs(layer)]
    return leads_in and (not inputs or any(name in written for name in inputs))


def _checked(graph: Path, layer: Any, written: set[str], read: set[str]) -> Iterator[str]:
    cast = str(layer.type).endswith("CAST")
    sides = ((_inputs(layer), written), (_outputs(layer), read))
    for tensors, inner in sides:
        for tensor in tensors:
            kind = tensor.dtype.name
            if kind not in _FLOATING or (cast and tensor.name not in inner):  # the outer side of a Cast at the border
                continue
            if kind != "FLOAT":
                raise BuildError(
                    f"{graph.name}: TensorRT would compute {tensor.name} of layer {layer.name} in {kind}; "
                    "the spectral island must be FLOAT"
                )
            yield tensor.name


def _inputs(layer: Any) -> list[Any]:
    found = [layer.get_input(index) for index in range(layer.num_inputs)]
    return [tensor for tensor in found if tensor is not None]


def _outputs(layer: Any) -> list[Any]:
    return [layer.get_output(index) for index in range(layer.num_outputs)]
