"""The proof that a compiled engine computes the spectral island in fp32, read from TensorRT's own account of its layers.

That account comes from the engine inspector, as JSON, where the engine can be opened, and from the builder's log, in its own
spelling, where it cannot (TensorRT-RTX, with detailed verbosity). Of each layer it names the tensors with their types, the
kernel, and the ONNX nodes that the layer was made of. Spellings that were met: `Datatype` and `Format` (11.x, RTX), `DataType`,
and `Format/Datatype`, as "Half" or "Row major linear FP16 format" (10.x); nodes as "[ONNX Layer: name]" in `Metadata`.

    a layer of island nodes alone      every floating tensor is FLOAT, but for the outer side of a Cast at the border
    a layer that fuses across it       half tensors only if a Cast from or to half is among its nodes; what happens inside is
                                       not shown
    a product of the island            its operands are FLOAT in any case, and its kernel is none of the tensor cores, which
                                       would multiply FLOAT as TF32
    every product of the island        occurs in some layer
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from essm_deploy.backends.tensorrt.island import island_nodes
from essm_deploy.errors import VerificationError
from essm_deploy.graph.dtypes import HALF
from essm_deploy.graph.precision import in_island, value_types

_PRODUCTS = ("MatMul", "Gemm")
_PRODUCT_LAYERS = re.compile(r"gemm|matmul|matrix.?multiply", re.IGNORECASE)
_TENSOR_CORES = re.compile(r"tf32|tensorop|tensor\d+x\d+|hmma|(?<![a-z])b?f16", re.IGNORECASE)
"""In the names of kernels that multiply in less than fp32: sm80_xmma_gemm_f32f32_tf32f32_f32_..., cutlass_80_tensorop_..."""

_HASH = re.compile(r"0x[0-9a-f]+")
_ORIGIN = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_FLOAT = re.compile(r"\b(?:FLOAT|FP32)\b", re.IGNORECASE)
_OTHER_FLOATING = re.compile(r"\b(?:HALF|FP16|BFLOAT16|BF16|FP8|FP4|E8M0|TF32|DOUBLE|FP64)\b", re.IGNORECASE)
_SAME = {"FP16": "HALF", "BFLOAT16": "BF16", "FP64": "DOUBLE"}
_WHOLE = re.compile(r"\b(?:U?INT\d+|BOOL)\b", re.IGNORECASE)

_HEAD = re.compile(r"Name: ((?:(?!Name: ).)*?), LayerType: (\w+)")
_ENTRY = re.compile(r"\{ Name: (.*?), (?:Location: \w+, )?Dimensions: [^{}]*?(?:Datatype|DataType): (\w+)")
_SECTION = re.compile(r"\b(Inputs|Constants|Outputs): \[((?: ?\{[^{}]*\},?)*) ?\]")


@dataclass(frozen=True)
class LayerTensor:
    """One tensor of a layer. `role` is Inputs, Constants or Outputs; `kind` is FLOAT, another floating type, or "" if whole."""

    name: str
    role: str
    kind: str


@dataclass(frozen=True)
class Layer:
    """One layer of a compiled engine."""

    name: str
    kind: str
    tactic: str
    origins: tuple[str, ...]
    tensors: tuple[LayerTensor, ...]

    @property
    def multiplies(self) -> bool:
        """Whether TensorRT calls it a matrix product."""
        return bool(_PRODUCT_LAYERS.search(self.kind))


@dataclass(frozen=True)
class LayersProof:
    """How many layers carry the island, how many of those reach across its border, and how many FLOAT tensors they have."""

    layers: int
    across: int
    tensors: int
    dtype: str = "FLOAT"

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def inspected_layers(text: str, where: str) -> list[Layer]:
    """The layers of the inspector's JSON. VerificationError if it is something else, or was built without details."""
    try:
        document = json.loads(text, strict=False)  # names are set apart by control characters
        layers = document["Layers"]
        if not isinstance(layers, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VerificationError(f"{where}: the engine inspector answered no JSON object with Layers") from None
    if any(isinstance(layer, str) for layer in layers):
        raise VerificationError(
            f"{where}: the engine names its layers and nothing else, so fp32 cannot be proved: it was built by an older "
            "essm-deploy; build it again"
        )
    return [_layer(layer, where) for layer in layers]


def listed_layers(line: str) -> list[Layer]:
    """The layers of the builder's own listing, "Layers: Name: ..., LayerType: ..."; empty if it holds none."""
    listing = line.split(" I/O Tensors: ")[0]
    heads = list(_HEAD.finditer(listing))
    ends = [head.start() for head in heads[1:]] + [len(listing)]
    return [_listed(head, listing[head.end() : end]) for head, end in zip(heads, ends, strict=False)]


def prove_layers(graph: Path, layers: Iterable[Layer], where: str) -> LayersProof:
    """Hold the layers that were compiled from `graph` against the rules. VerificationError names the layer and the tensor."""
    model = onnx.load(graph, load_external_data=False)
    nodes, half_casts = island_nodes(graph), _half_casts(model)
    carrying = [layer for layer in layers if _carries(layer, nodes)]
    found = {origin for layer in carrying for origin in layer.origins}
    lost = sorted(name for name in _live(model) if nodes.get(name) in _PRODUCTS and name not in found)
    if lost or not carrying:
        missing = lost[0] if lost else "the island"
        raise VerificationError(f"{where}: no layer of the engine shows {missing}, so fp32 cannot be proved")
    seen = {name for layer in carrying for name in _checked(layer, nodes, half_casts, where)}
    across = [layer for layer in carrying if any(origin not in nodes for origin in layer.origins)]
    return LayersProof(len(carrying), len(across), len(seen))


def _half_casts(model: onnx.ModelProto) -> set[str]:
    """The Casts from or to a half type: where half and float meet, in the island's border or outside of it."""
    types = value_types(onnx.shape_inference.infer_shapes(model))
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    return {node.name for node in casts if {types.get(name) for name in (*node.input, *node.output)} & {*HALF}}


def _live(model: onnx.ModelProto) -> set[str]:
    """The nodes on which an output depends; a compiler drops the others."""
    wanted, live = {port.name for port in model.graph.output}, set[str]()
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            live.add(node.name)
    return live


def _carries(layer: Layer, nodes: Mapping[str, str]) -> bool:
    return any(origin in nodes for origin in layer.origins) or any(in_island(tensor.name) for tensor in layer.tensors)


def _checked(layer: Layer, nodes: Mapping[str, str], half_casts: set[str], where: str) -> Iterator[str]:
    """The names of a layer's FLOAT tensors; VerificationError at a tensor or a kernel that is not what it has to be."""
    product = any(nodes.get(origin) in _PRODUCTS for origin in layer.origins) and (
        layer.multiplies or all(origin in nodes for origin in layer.origins)
    )
    casts = not half_casts.isdisjoint(layer.origins)
    if product and _TENSOR_CORES.search(_HASH.sub("", layer.tactic)):
        raise VerificationError(
            f"{where}: layer {layer.name} multiplies with the kernel {layer.tactic}, which is not fp32; "
            "the spectral island must be FLOAT"
        )
    for tensor in layer.tensors:
        operand = product and tensor.role != "Outputs"
        inner = in_island(tensor.name) and not any(cast in tensor.name for cast in half_casts)
        if tensor.kind not in ("", "FLOAT") and (operand or inner or not casts):
            raise VerificationError(
                f"{where}: {tensor.name} of layer {layer.name} is {tensor.kind}; the spectral island must be FLOAT"
            )
        if tensor.kind == "FLOAT":
            yield tensor.name


def _layer(value: object, where: str) -> Layer:
    if not isinstance(value, dict):
        raise VerificationError(f"{where}: the engine inspector answered a layer that is no object")
    tensors = [
        LayerTensor(str(entry.get("Name", "")), role, _kind(_type_of(entry)))
        for role in ("Inputs", "Constants", "Outputs")
        for entry in _entries(value, role)
    ]
    origins = _ORIGIN.findall(str(value.get("Metadata", "")))
    name, kind = str(value.get("Name", "")), str(value.get("LayerType", ""))
    return Layer(name, kind, str(value.get("TacticName", "")), tuple(origins), tuple(tensors))


def _entries(layer: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    entries = layer.get(role) or []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _type_of(entry: Mapping[str, Any]) -> str:
    """The type of a tensor in whichever of the spellings is there."""
    return next((str(entry[key]) for key in ("Datatype", "DataType", "Format/Datatype", "Format") if entry.get(key)), "")


def _kind(text: str) -> str:
    """FLOAT, another floating type, or "" for whole numbers. What is not known is not taken for FLOAT."""
    if (other := _OTHER_FLOATING.search(text)) is not None:
        return _SAME.get(other[0].upper(), other[0].upper())
    if _FLOAT.search(text):
        return "FLOAT"
    return "" if _WHOLE.search(text) or text in ("", "None") else text.upper()


def _listed(head: re.Match[str], body: str) -> Layer:
    tactic = re.search(r"TacticName: ([^,]*)", body)
    tensors = [
        LayerTensor(name, section[1], _kind(kind))
        for section in _SECTION.finditer(body)
        for name, kind in _ENTRY.findall(section[2])
    ]
    return Layer(head[1], head[2], tactic[1] if tactic else "", tuple(_ORIGIN.findall(body)), tuple(tensors))
