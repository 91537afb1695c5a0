"""Which backend takes which node: said before anything is built, with the reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from essm_deploy.backends.base import GraphsOnly
from essm_deploy.backends.emit import prepare
from essm_deploy.backends.support import TABLE_SOURCE, graph_support, support_json
from essm_deploy.errors import BundleError
from essm_deploy.families import open_checkpoint
from essm_deploy.spectral.planning import NAMES, lawful_lowerings

BACKENDS = ["onnxruntime", "tensorrt-rtx", "tensorrt"]


def graph(folder: Path, checkpoint: Path, lowering: str = "toeplitz") -> Path:
    made = prepare(
        folder, open_checkpoint(checkpoint), [4], 1, GraphsOnly("any"), lambda problem: lawful_lowerings(problem, lowering)[0]
    )
    return folder / made.sequence(4).files[0]


@pytest.mark.parametrize("lowering", [name for name in NAMES if name not in ("dft", "chunked")])
def test_every_node_of_our_lowerings_is_taken_by_every_backend(keywords: Path, tmp_path: Path, lowering: str) -> None:
    entries = graph_support(graph(tmp_path, keywords, lowering))
    assert [entry for entry in entries if not entry.supported] == []
    counts = support_json(entries)["backends"]
    assert list(counts) == BACKENDS
    assert len({c["nodes"] for c in counts.values()}) == 1


def test_dft_is_what_tensorrt_does_not_take_and_the_reason_is_given(keywords: Path, tmp_path: Path) -> None:
    refused = [entry for entry in graph_support(graph(tmp_path, keywords, "dft")) if not entry.supported]
    assert {entry.op_type for entry in refused} == {"DFT"}
    assert {entry.backend for entry in refused} == {"tensorrt-rtx", "tensorrt"}
    assert all("11.2.1" in entry.reason for entry in refused)


def test_without_the_package_the_published_table_answers(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = importlib.util.find_spec
    path = graph(tmp_path, keywords, "dft")
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, p=None: None if n.startswith("tensorrt") else real(n, p))
    entries = graph_support(path)
    assert {e.basis for e in entries if e.backend.startswith("tensorrt")} == {f"table: {TABLE_SOURCE}"}
    assert {e.op_type for e in entries if not e.supported} == {"DFT"}


@pytest.mark.parametrize(
    ("op_type", "kind", "opset", "backend", "reason"),
    [
        ("Gelu", onnx.TensorProto.BFLOAT16, 20, "onnxruntime", "does not take tensor(bfloat16)"),
        ("Gelu", onnx.TensorProto.FLOAT, 20, "onnxruntime", ""),
        ("Mish", onnx.TensorProto.FLOAT, 20, "tensorrt", "not in the table"),
        ("Sigmoid", onnx.TensorProto.DOUBLE, 20, "tensorrt", "does not take DOUBLE"),
        ("Sigmoid", onnx.TensorProto.FLOAT, 21, "tensorrt", "opset 21; TensorRT 10.3 reads 9 to 20"),
    ],
)
def test_types_and_opsets_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op_type: str, kind: int, opset: int, backend: str, reason: str
) -> None:
    monkeypatch.setattr("essm_deploy.backends.support.importlib.util.find_spec", lambda name: None)
    ports = [helper.make_tensor_value_info(name, kind, [2]) for name in "xy"]
    made = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], name="node")], "one", [ports[0]], [ports[1]])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)]), tmp_path / "one.onnx")
    entry = next(e for e in graph_support(tmp_path / "one.onnx") if e.backend == backend)
    assert reason in entry.reason
    assert entry.supported == (reason == "")


@pytest.mark.parametrize("content", [None, b"not protobuf at all"])
def test_what_is_no_graph_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=r"x\.onnx: (there is no such file|not an ONNX graph)"):
        graph_support(path)
