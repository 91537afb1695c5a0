"""Weights lie outside the graph, on pages, and a smaller budget is a shorter view of the same bytes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from essm_deploy.errors import BuildError, PrecisionError
from essm_deploy.graph.builder import GraphBuilder, save_model
from essm_deploy.graph.dtypes import Precision
from essm_deploy.graph.weights import PAGE, Region, data_file, write_weights


def external(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def test_every_tensor_starts_on_a_page_and_reads_back(tmp_path: Path) -> None:
    tensors = {"a": np.arange(5, dtype="f4"), "b": np.arange(3000, dtype="f4").reshape(30, 100), "c": np.ones(1, "i8")}
    regions = write_weights(tmp_path, "w.bin", tensors)
    content = (tmp_path / "w.bin").read_bytes()
    for name, array in tensors.items():
        region = regions[name]
        assert region.offset % PAGE == 0
        assert content[region.offset : region.offset + region.nbytes] == array.tobytes()


def test_a_prefix_has_the_same_offset_and_a_shorter_length() -> None:
    region = Region("w.bin", 8192, 4 * 32 * 16, TensorProto.FLOAT)
    whole, prefix = external(region.tensor("m", (32, 16))), external(region.tensor("m", (8 * 16,)))
    assert prefix["offset"] == whole["offset"] == "8192"
    assert (prefix["length"], whole["length"]) == ("512", "2048")


def test_more_than_the_file_holds_is_refused() -> None:
    with pytest.raises(BuildError, match="needs 256 bytes"):
        Region("w.bin", 0, 128, TensorProto.FLOAT).tensor("m", (64,))


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.dtype("f2")), ("bf16", np.dtype(ml_dtypes.bfloat16))])
def test_main_tensors_are_stored_once_and_converted(tmp_path: Path, precision: Precision, dtype: np.dtype) -> None:
    tensors = {"main": np.linspace(-3, 3, 4096, dtype="f4").reshape(8, 512), "norm": np.ones(16, "f4")}
    regions = write_weights(tmp_path, "w.bin", tensors, precision, {"main"})
    content = (tmp_path / "w.bin").read_bytes()
    main, norm = regions["main"], regions["norm"]
    assert content[main.offset : main.offset + main.nbytes] == tensors["main"].astype(dtype).tobytes()
    assert content[norm.offset : norm.offset + norm.nbytes] == tensors["norm"].tobytes()
    assert len(content) == PAGE + 8 * 512 * 2
    prefix = main.tensor("main", (3, 512))  # a smaller budget is still a prefix of the bytes
    assert (external(prefix)["offset"], external(prefix)["length"]) == (str(main.offset), str(3 * 512 * 2))


def test_a_weight_beyond_the_range_of_half_is_named(tmp_path: Path) -> None:
    tensors = {"small": np.ones(4, "f4"), "large": np.full(4, 7e4, "f4")}
    with pytest.raises(PrecisionError, match=r"the weight large reaches 7e\+04, and FLOAT16 ends at 6\.55e\+04"):
        write_weights(tmp_path, "w.bin", tensors, "fp16", {"small", "large"})
    write_weights(tmp_path, "w.bin", tensors, "bf16", {"small", "large"})


def builder(tmp_path: Path) -> GraphBuilder:
    with data_file(tmp_path, "c.bin") as file:
        return GraphBuilder("g", write_weights(tmp_path, "w.bin", {"m": np.ones((4, 4), "f4")}), file)


def test_names_follow_scopes_and_never_collide(tmp_path: Path) -> None:
    b = builder(tmp_path)
    x = b.input("x", TensorProto.FLOAT, [4, 4])
    with b.scope("layers.0"), b.scope("spectral"):
        first, second = b.op("Add", x, x), b.op("Add", x, x)
    assert (first, second) == ("layers.0/spectral/Add", "layers.0/spectral/Add_1")


def test_an_unknown_weight_and_one_tensor_in_two_shapes_are_refused(tmp_path: Path) -> None:
    b = builder(tmp_path)
    with pytest.raises(BuildError, match="no tensor named 'n'"):
        b.weight("n", (4, 4))
    b.weight("m", (4, 4))
    with pytest.raises(BuildError, match="is used as"):
        b.weight("m", (16,))


def test_a_graph_that_the_checker_refuses_is_a_build_error(tmp_path: Path) -> None:
    b = builder(tmp_path)
    x = b.input("x", TensorProto.FLOAT, [4, 3])
    b.output("y", b.op("MatMul", x, b.weight("m", (4, 4))), TensorProto.FLOAT, [4, 4])
    with pytest.raises(BuildError, match=r"g\.onnx: the ONNX checker refuses"):
        save_model(b.model(), tmp_path / "g.onnx")


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    with data_file(tmp_path, "c.bin") as file:
        b = GraphBuilder("g", {}, file)
        same = [b.constant(np.ones(2000, "f4"), "ones") for _ in range(3)]
        other = [b.constant(np.ones(2000, "i4"), "ones"), b.constant(np.ones((20, 100), "f4"), "ones")]
    assert len({*same}) == 1
    assert len({*same, *other}) == 3
    assert (tmp_path / "c.bin").stat().st_size < 3 * 3 * PAGE


def test_large_constants_stay_out_of_the_protobuf(tmp_path: Path) -> None:
    with data_file(tmp_path, "c.bin") as file:
        b = GraphBuilder("g", {}, file)
        x = b.input("x", TensorProto.FLOAT, [1000])
        b.output("y", b.op("Add", x, b.constant(np.ones(1000, "f4"), "ones")), TensorProto.FLOAT, [1000])
        model = b.model()
    save_model(model, tmp_path / "g.onnx")
    assert (tmp_path / "g.onnx").stat().st_size < 1000
    assert onnx.load(tmp_path / "g.onnx").graph.initializer[0].raw_data == np.ones(1000, "f4").tobytes()
