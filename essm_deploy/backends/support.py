"""Which nodes of a graph each backend takes, and why it does not take the others: known before anything is built.

    onnxruntime     the kernels that the installed package registers for its CPU provider
    tensorrt-rtx    its own parser, where it is installed; it is asked about the whole graph
    tensorrt        the same, and the published operator table where it is not installed, as on any machine without the GPU

Nothing is built for the answer.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from essm_deploy.backends.tensorrt.flavours import CLASSIC, RTX, Flavour
from essm_deploy.backends.tensorrt.network import reason_of, strongly_typed_network
from essm_deploy.errors import BundleError
from essm_deploy.graph.precision import value_types
from essm_deploy.runtime.tensorrt_log import captured

_FLOATS: set[int] = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_NUMBERS = _FLOATS | {TensorProto.INT32, TensorProto.INT64}
_ALL = _NUMBERS | {TensorProto.BOOL}

TABLE_SOURCE = "onnx-tensorrt docs/operators.md of TensorRT 10.15"
OLDEST_OPSET, NEWEST_OPSET = 9, 20
"""The opsets that TensorRT 10.3, the oldest that is supported, reads."""

_TABLE: dict[str, set[int]] = {
    **dict.fromkeys(("Gemm", "MatMul", "LayerNormalization", "Sigmoid", "Tanh", "Softmax"), _FLOATS),
    **dict.fromkeys(("Erf", "Exp", "Sqrt", "Sin", "Cos"), _FLOATS),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal", "Gelu", "Pad", "Neg", "Pow"), _NUMBERS),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "Relu", "Min", "Max", "Range"), _NUMBERS),
    **dict.fromkeys(("Concat", "Split", "Slice", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Identity"), _ALL),
    **dict.fromkeys(("Gather", "Expand", "Where", "Cast", "Shape", "Constant", "ConstantOfShape", "Flatten", "Tile"), _ALL),
}
"""Operators that our graphs use or may come to use, with their types; what is not here is not known to work."""

_REASONS = {"DFT": "TensorRT reads DFT from 11.2.1 on, as a plugin; TensorRT-RTX does not"}


@dataclass(frozen=True)
class NodeSupport:
    """One node in one backend; `reason` is empty where it is supported. `basis`: kernels, parser or table."""

    node: str
    op_type: str
    backend: str
    reason: str
    basis: str

    @property
    def supported(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reason


def graph_support(path: Path) -> list[NodeSupport]:
    """Every node of the graph in `path` in every backend, in the order of the graph. BundleError if it is no graph."""
    model = _read(path)
    asked: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {"onnxruntime": ("kernels", lambda: _kernels(model))}
    for flavour in (RTX, CLASSIC):
        if importlib.util.find_spec(flavour.module):
            asked[flavour.name] = ("parser", functools.partial(_parser, flavour, model, path))
        else:
            asked[flavour.name] = (f"table: {TABLE_SOURCE}", lambda: _table(model))
    answers = {name: (basis, ask()) for name, (basis, ask) in asked.items()}
    return [
        NodeSupport(node.name, node.op_type, backend, reasons.get(node.name, ""), basis)
        for node in model.graph.node
        for backend, (basis, reasons) in answers.items()
    ]


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False))
    except FileNotFoundError:
        raise BundleError(f"{path}: there is no such file; expected an ONNX graph, a bundle or a checkpoint") from None
    except Exception as error:  # protobuf's own exceptions differ from version to version
        reason = " ".join(str(error).split())[:120]
        raise BundleError(f"{path}: not an ONNX graph ({reason})") from None


def _parser(flavour: Flavour, model: onnx.ModelProto, path: Path) -> dict[str, str]:
    trt = flavour.load()
    with captured(trt) as (logger, _):
        builder = trt.Builder(logger)
        if builder is None:  # classic TensorRT has no builder without a GPU
            return _table(model)
        network = strongly_typed_network(trt, builder)  # the parser does not keep it alive
        parser = trt.OnnxParser(network, logger)
        if parser.supports_model_v2(path.read_bytes(), str(path)):
            return {}
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        return {model.graph.node[error.node()].name: _REASONS.get(error.node_operator(), reason_of(error)) for error in errors}


def _table(model: onnx.ModelProto) -> dict[str, str]:
    opset, types = _opset(model), value_types(model)
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        return {node.name: f"opset {opset}; TensorRT 10.3 reads {OLDEST_OPSET} to {NEWEST_OPSET}" for node in model.graph.node}
    return {node.name: reason for node in model.graph.node if (reason := _table_reason(node, types))}


def _table_reason(node: onnx.NodeProto, types: dict[str, int]) -> str:
    allowed = _TABLE.get(node.op_type)
    if allowed is None:
        return _REASONS.get(node.op_type, f"{node.op_type} is not in the table of operators known to work")
    kind = types.get(node.input[0], TensorProto.UNDEFINED)
    return "" if kind in allowed else f"{node.op_type} does not take {TensorProto.DataType.Name(kind)}"


def _kernels(model: onnx.ModelProto) -> dict[str, str]:
    opset, types = _opset(model), value_types(model)
    return {node.name: reason for node in model.graph.node if (reason := _kernel_reason(node, opset, types))}


def _kernel_reason(node: onnx.NodeProto, opset: int, types: dict[str, int]) -> str:
    kernels = list(_registered().get(node.op_type, ()))
    if not kernels:
        return f"the CPU provider has no {node.op_type}"
    since = onnx.defs.get_schema(node.op_type, opset).since_version
    shown = _spelled(types.get(node.input[0], TensorProto.UNDEFINED)) if node.input else ""
    fitting = [k for k in kernels if k.version_range[0] <= since <= k.version_range[1]]
    if not fitting:
        return f"the CPU provider has no {node.op_type} of opset {since}"
    variable = onnx.defs.get_schema(node.op_type, opset).inputs[0].type_str if node.input else ""
    taken = {kind for kernel in fitting for kind in kernel.type_constraints.get(variable, [shown])}
    if shown in taken:
        return ""
    if shown == "tensor(float16)" and "tensor(float)" in taken:
        return ""  # ONNX Runtime computes it in float between two Casts of its own
    return f"the CPU provider's {node.op_type} does not take {shown}"


def _spelled(kind: int) -> str:
    names: dict[int, str] = {TensorProto.FLOAT: "float", TensorProto.DOUBLE: "double"}
    return f"tensor({names.get(kind, TensorProto.DataType.Name(kind).lower())})"


@functools.cache
def _registered() -> dict[str, list[Any]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[str, list[Any]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain == "":
            found.setdefault(kernel.op_name, []).append(kernel)
    return found


def _opset(model: onnx.ModelProto) -> int:
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def support_json(entries: list[NodeSupport]) -> dict[str, Any]:
    """Counts by backend, and a row a node: `reasons` names the backends that do not take it."""
    backends: dict[str, dict[str, Any]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for entry in entries:
        counts = backends.setdefault(entry.backend, {"basis": entry.basis, "nodes": 0, "supported": 0})
        counts["nodes"] += 1
        counts["supported"] += entry.supported
        row = nodes.setdefault(entry.node, {"node": entry.node, "operator": entry.op_type, "reasons": {}})
        if entry.reason:
            row["reasons"][entry.backend] = entry.reason
    return {"backends": backends, "nodes": list(nodes.values())}


def graphs_below(path: Path) -> Iterator[Path]:
    """The ONNX files that `path` is or holds."""
    yield from [path] if path.suffix == ".onnx" else sorted(path.glob("*.onnx"))
