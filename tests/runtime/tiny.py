"""A bundle of a few kilobytes: masked mean over time, then one linear map whose weights are external data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from essm_deploy.runtime.files import sha256_file

LENGTH, WIDTH, LABELS = 6, 3, ("no", "yes")
WEIGHTS = np.arange(WIDTH * len(LABELS), dtype=np.float32).reshape(WIDTH, len(LABELS)) / 10


def expected(features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The same computation in numpy: [batch, LENGTH, WIDTH], [batch] -> [batch, labels]."""
    mask = np.arange(features.shape[1])[None, :] < lengths[:, None]
    return (features * mask[..., None]).sum(1) / lengths[:, None] @ WEIGHTS


def write_graph(path: Path, *, location: str = "weights.bin", batch: int | str = "batch") -> None:
    """The graph at `path`, and its weights beside it."""
    weights = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=WEIGHTS.shape, data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    positions = helper.make_tensor("positions", TensorProto.INT64, [1, LENGTH], list(range(LENGTH)))
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    last = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    nodes = [
        helper.make_node("Unsqueeze", ["lengths", "axes"], ["column"]),
        helper.make_node("Less", ["positions", "column"], ["valid"]),
        helper.make_node("Cast", ["valid"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["features", "mask3"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axes"], ["summed"], keepdims=0),
        helper.make_node("Cast", ["column"], ["count"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["summed", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, LENGTH, WIDTH]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, [batch]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, len(LABELS)])],
        [weights, positions, axes, last],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    WEIGHTS.tofile(path.with_name("weights.bin"))
    if location == "weights.bin":
        onnx.checker.check_model(str(path))


def engine_entry(budget: str = "k2", *, batch: int | str = "batch") -> dict[str, Any]:
    """The manifest's entry for that graph."""
    return {
        "id": f"{budget}-sequence",
        "budget": budget,
        "kind": "sequence",
        "chunk": None,
        "backend": "onnxruntime",
        "precision": "fp32",
        "files": [f"graphs/{budget}.onnx", "graphs/weights.bin"],
        "requires": {"onnxruntime": ">=1.17", "opset": 17, "provider": "CPUExecutionProvider"},
        "profile": {"basis": "measured"},
        "inputs": [
            {"name": "features", "dtype": "float32", "shape": [batch, LENGTH, WIDTH]},
            {"name": "lengths", "dtype": "int64", "shape": [batch], "maximum": LENGTH},
        ],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [batch, len(LABELS)]}],
    }


def document(files: dict[str, str]) -> dict[str, Any]:
    """A manifest with the budgets k2 and k8."""
    return {
        "schema_version": "1.0",
        "model": {
            "name": "tiny",
            "family": "es_ssm",
            "task": "classification",
            "hash": "0" * 64,
            "id2label": {str(i): label for i, label in enumerate(LABELS)},
        },
        "target": {"name": "cpu"},
        "overflow": "window",
        "limits": {"max_latency_ms": 10.0},
        "budgets": [
            {"id": "k2", "axes": {"k": 2}, "order": 0, "quality": {"metric": "accuracy", "value": 0.9}},
            {"id": "k8", "axes": {"k": 8}, "order": 1},
        ],
        "engines": [engine_entry("k2"), engine_entry("k8")],
        "default": "k8-sequence",
        "files": files,
    }


def write_bundle(root: Path) -> Path:
    """A whole, valid bundle in the directory `root`."""
    graphs = root / "graphs"
    graphs.mkdir(parents=True)
    for budget in ("k2", "k8"):
        write_graph(graphs / f"{budget}.onnx")
    files = {path.relative_to(root).as_posix(): sha256_file(path) for path in sorted(graphs.iterdir())}
    (root / "manifest.json").write_text(json.dumps(document(files)), encoding="utf-8")
    return root
