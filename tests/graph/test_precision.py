"""The checker proves the fp32 island from the finished graph, and trusts nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from essm_deploy.errors import BuildError
from essm_deploy.graph.precision import check_island, check_policy

HALF, BRAIN, FLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT


def typed(nodes: list[onnx.NodeProto], **values: int) -> onnx.ModelProto:
    infos = {name: helper.make_tensor_value_info(name, kind, [4]) for name, kind in values.items()}
    graph = helper.make_graph(nodes, "g", [infos.pop("x")], [infos.pop("y")], value_info=list(infos.values()))
    return helper.make_model(graph)


def node(op: str, inputs: str, output: str, name: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=name, **attributes)


def bordered(inner: int) -> onnx.ModelProto:
    """fp16 -> Cast -> island -> Cast -> fp16, with the island's own tensors of type `inner`."""
    return typed(
        [
            node("Cast", "x", "a", "layers.0/spectral/Cast", to=inner),
            node("Add", "a a", "b", "layers.0/spectral/Add"),
            node("Cast", "b", "y", "layers.0/spectral/Cast_1", to=HALF),
        ],
        x=HALF,
        y=HALF,
        a=inner,
        b=inner,
    )


def test_casts_at_the_border_may_look_outside() -> None:
    report = check_island(bordered(FLOAT))
    assert (report.nodes, report.tensors) == (3, 2)


@pytest.mark.parametrize("inner", [HALF, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_any_other_type_inside_is_refused(inner: int) -> None:
    with pytest.raises(BuildError, match="must be FLOAT"):
        check_island(bordered(inner))


def test_a_half_tensor_that_enters_without_a_cast_is_refused() -> None:
    model = typed([node("Add", "x x", "y", "layers.0/spectral/Add")], x=HALF, y=HALF)
    with pytest.raises(BuildError, match=r"x \(node layers\.0/spectral/Add\) is FLOAT16"):
        check_island(model)


def test_a_round_trip_through_half_inside_is_refused() -> None:
    """A Cast to half and back between two island nodes is no border, although it is made of Casts."""
    model = typed(
        [
            node("Add", "x x", "a", "spectral/Add"),
            node("Cast", "a", "h", "spectral/Cast", to=HALF),
            node("Cast", "h", "b", "spectral/Cast_1", to=FLOAT),
            node("Add", "b b", "y", "spectral/Add_1"),
        ],
        x=FLOAT,
        y=FLOAT,
        a=FLOAT,
        h=HALF,
        b=FLOAT,
    )
    with pytest.raises(BuildError, match=r"h .* is FLOAT16"):
        check_island(model)


def test_an_unknown_type_proves_nothing() -> None:
    model = typed([node("Add", "x x", "a", "spectral/Add"), node("Add", "a a", "y", "out")], x=FLOAT, y=FLOAT)
    with pytest.raises(BuildError, match=r"the type of a .* is unknown"):
        check_island(model)


def test_an_empty_island_is_refused() -> None:
    with pytest.raises(BuildError, match="no node under spectral/"):
        check_island(typed([node("Add", "x x", "y", "layers.0/Add")], x=FLOAT, y=FLOAT))


def test_integers_in_the_island_are_no_concern(tmp_path: Path) -> None:
    model = typed(
        [node("Shape", "x", "s", "spectral/Shape"), node("Add", "x x", "y", "spectral/Add")],
        x=FLOAT,
        y=FLOAT,
        s=TensorProto.INT64,
    )
    assert check_island(model).tensors == 2


def layer(**changes: int) -> onnx.ModelProto:
    """norm -> Cast -> MatMul -> Cast -> residual Add, and an island beside it, as `--precision fp16` has them."""
    kinds = {"x": FLOAT, "y": FLOAT, "n": FLOAT, "h": HALF, "m": HALF, "f": FLOAT, "s": FLOAT, "c": FLOAT, **changes}
    nodes = [
        node("LayerNormalization", "x s s", "n", "layers.0/LayerNormalization"),
        node("Cast", "n", "h", "layers.0/Cast", to=HALF),
        node("MatMul", "h w", "m", "layers.0/MatMul"),
        node("Cast", "m", "f", "layers.0/Cast_1", to=FLOAT),
        node("Mul", "n n", "c", "layers.0/spectral/Mul"),
        node("Add", "x f", "y", "layers.0/Add"),
    ]
    weight = kinds.pop("w", HALF)
    model = typed(nodes, **kinds)
    model.graph.initializer.append(helper.make_tensor("w", weight, [4], [0.0] * 4))
    return model


def test_the_policy_holds_where_everything_is_as_promised() -> None:
    report = check_policy(layer(), "fp16")
    assert (report.products, report.norms, report.sums) == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w": FLOAT}, r"w \(node layers\.0/MatMul\) is FLOAT; MatMul must be FLOAT16"),
        ({"m": FLOAT}, r"m \(node layers\.0/MatMul\) is FLOAT; MatMul must be FLOAT16"),
        ({"h": BRAIN}, r"h \(node layers\.0/Cast\) is BFLOAT16; Cast must be FLOAT or FLOAT16"),
        ({"n": HALF}, r"n \(node layers\.0/LayerNormalization\) is FLOAT16; LayerNormalization must be FLOAT"),
        ({"s": HALF}, r"s \(node layers\.0/LayerNormalization\) is FLOAT16"),
        ({"f": HALF}, r"f \(node layers\.0/Add\) is FLOAT16; Add must be FLOAT"),
        ({"x": HALF}, r"x \(graph input or output\) is FLOAT16"),
        ({"y": HALF}, r"y \(graph input or output\) is FLOAT16"),
        ({"f": TensorProto.DOUBLE}, r"f .* is DOUBLE"),
        ({"m": TensorProto.UNDEFINED}, r"the type of m .* is unknown"),
    ],
)
def test_each_rule_of_the_policy_is_enforced(changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        check_policy(layer(**changes), "fp16")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_of_one_precision_is_none_of_another(precision: Any) -> None:
    with pytest.raises(BuildError, match=r"is FLOAT16"):
        check_policy(layer(), precision)


def test_a_weight_that_is_cast_at_run_time_is_refused() -> None:
    model = layer()
    model.graph.node.insert(2, node("Cast", "w", "v", "layers.0/Cast_2", to=FLOAT))
    with pytest.raises(BuildError, match=r"layers\.0/Cast_2 casts the weight w at run time"):
        check_policy(model, "fp16")


def test_what_enters_the_island_was_not_rounded_on_its_way() -> None:
    """FLOAT again, but by a Cast that the island does not own: rounded to half and back, its type tells nothing."""
    model = layer()
    model.graph.node[4].input[0] = "f"
    with pytest.raises(BuildError, match=r"f enters the island at layers\.0/spectral/Mul through a Cast outside of it"):
        check_policy(model, "fp16")
