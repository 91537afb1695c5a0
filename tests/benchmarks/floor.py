"""The floor of an engine: its MatMul and Gemm nodes and nothing else.

Every product of the engine appears once, with the same operator, attributes and shapes. What is constant in the engine is a
constant here (the same bytes of the same file, so that ONNX Runtime packs it the same way); what is computed in the engine
is a graph input. Inputs and outputs are bound to fixed host arrays, one for all tensors of a shape, so that nothing but the
products is executed, and every result is an output, so that none is left out. Two products of the same constants get
different inputs: ONNX Runtime would compute equal ones once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from essm_deploy.graph.weights import DataFile, data_file
from essm_deploy.runtime.manifest import Engine, TensorInfo
from tests.benchmarks.engines import FLOOR_SUFFIX

PRODUCTS = ("MatMul", "Gemm")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """One product of an engine: operator, attributes, operand shapes, and which of the operands are constants."""

    node: onnx.NodeProto
    shapes: tuple[Shape, ...]
    constants: tuple[str | None, ...]
    output: Shape

    @property
    def flops(self) -> int:
        """Two operations a multiply-add."""
        transposed = any(a.name == "transA" and a.i for a in self.node.attribute)
        inner = self.shapes[0][-2 if transposed else -1]
        return 2 * inner * int(np.prod(self.output))

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for products that ONNX Runtime could not tell apart if their activations were the same."""
        attributes = tuple(sorted(a.SerializeToString() for a in self.node.attribute))
        return (self.node.op_type, attributes, self.shapes, self.constants)


def products(model: onnx.ModelProto) -> list[Product]:
    """Every MatMul and Gemm of a graph, in its order. ValueError if a shape is unknown or a product hides in a subgraph."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes, constant = _shapes(inferred.graph), _constants(inferred.graph)
    found = []
    for node in inferred.graph.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise ValueError(f"{node.name}: a subgraph may hold products that the floor does not see")
        if node.op_type in PRODUCTS:
            names = [name for name in (*node.input, node.output[0]) if name not in shapes]
            if names:
                raise ValueError(f"{node.name}: the shape of {names[0]} is unknown")
            operands = tuple(name if name in constant else None for name in node.input)
            found.append(Product(node, tuple(shapes[n] for n in node.input), operands, shapes[node.output[0]]))
    return found


def write_floor(root: Path, engine: Engine) -> Engine:
    """The floor of an engine in `root`, as an engine of its own next to it."""
    model = onnx.load(root / engine.files[0], load_external_data=False)
    name = engine.id + FLOOR_SUFFIX
    with data_file(root, f"{name}.bin") as file:
        floor, inputs, outputs = floor_model(model, file)
    onnx.save_model(floor, root / f"{name}.onnx")
    files = (f"{name}.onnx", *engine.files[1:], f"{name}.bin")
    return replace(
        engine, id=name, kind="sequence", chunk=None, stream=None, files=files, inputs=inputs, outputs=outputs, profile=None
    )


def floor_model(
    model: onnx.ModelProto, file: DataFile
) -> tuple[onnx.ModelProto, tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """The floor of a graph. Constants that are computed from constants are replaced by random ones, written to `file`."""
    build = _Build({t.name: t for t in model.graph.initializer}, file)
    for product in products(model):
        build.add(product)
    graph = helper.make_graph(
        build.nodes,
        "floor",
        [_value(port) for port in build.inputs.values()],
        [_value(port) for port in build.outputs],
        initializer=list(build.constants.values()),
    )
    floor = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(_without_data(floor))
    return floor, tuple(build.inputs.values()), tuple(build.outputs)


@dataclass
class _Build:
    """Nodes, ports and constants of a floor as products are added."""

    initializers: dict[str, TensorProto]
    file: DataFile
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, TensorInfo] = field(default_factory=dict)
    outputs: list[TensorInfo] = field(default_factory=list)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    seen: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def add(self, product: Product) -> None:
        copy, number = self.seen[product.key], len(self.nodes)
        self.seen[product.key] += 1
        operands = list(self._operands(product, copy))
        output = TensorInfo(f"y{number}", "float32", product.output)
        node = helper.make_node(product.node.op_type, operands, [output.name], name=product.node.name)
        node.attribute.extend(product.node.attribute)
        self.nodes.append(node)
        self.outputs.append(output)

    def _operands(self, product: Product, copy: int) -> Iterator[str]:
        for place, (shape, constant) in enumerate(zip(product.shapes, product.constants, strict=True)):
            if constant is not None:
                yield self._constant(constant, shape)
                continue
            name = "_".join(map(str, ("x", copy, place, *shape)))
            self.inputs.setdefault(name, TensorInfo(name, "float32", shape))
            yield name

    def _constant(self, name: str, shape: Shape) -> str:
        if name not in self.constants:
            stored = self.initializers.get(name)
            if stored is None:
                values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
                stored = self.file.add(values).tensor(name, shape)
            self.constants[name] = stored
        return name


def _shapes(graph: onnx.GraphProto) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def _constants(graph: onnx.GraphProto) -> set[str]:
    """Initializers, and whatever follows from them alone."""
    known = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if all(name in known for name in node.input if name):
            known.update(node.output)
    return known


def _value(port: TensorInfo) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, TensorProto.FLOAT, port.shape)


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose constants are inputs: the checker wants to read external data, which lies elsewhere."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensors = [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in copy.graph.initializer]
    del copy.graph.initializer[:]
    copy.graph.input.extend(tensors)
    return copy
