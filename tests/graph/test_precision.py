"""The checker proves the fp32 island from the finished graph, and trusts nobody."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from essm_deploy.errors import BuildError
from essm_deploy.graph.precision import check_island

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


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
