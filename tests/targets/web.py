"""Workers in JavaScript for tests: on a module that only looks like onnxruntime-web, and an engine for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from onnx import helper

from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.web_runtime import MODULES

FAKE = Path(__file__).with_name("fake_ort.mjs")


def fake_package(node_modules: Path) -> Path:
    """The folder of a package that passes for onnxruntime-web; returns `node_modules`."""
    package = node_modules / "onnxruntime-web"
    (package / "dist").mkdir(parents=True)
    for name in ("ort.node.min.mjs", "ort.wasm.min.mjs"):
        shutil.copy(FAKE, package / "dist" / name)
    (package / "package.json").write_text(json.dumps({"name": "onnxruntime-web", "version": "1.30.0"}))
    return node_modules


def fake_engine(root: Path, *, milliseconds: float = 0.0, graph: str | None = None, **changes: Any) -> Engine:
    """An engine in `root` whose logits [1, 2] are the sum of its features [1, 3, 2] and lengths [1].

    A call takes that many milliseconds. `graph` replaces the graph's text, `changes` keys of the entry.
    """
    entry: dict[str, Any] = {
        "id": "k2-sequence",
        "budget": "k2",
        "kind": "sequence",
        "backend": "onnxruntime",
        "precision": "fp32",
        "files": ["k2.onnx"],
        "requires": {"onnxruntime": ">=1.20", "opset": 20},
        "inputs": [
            {"name": "features", "dtype": "float32", "shape": [1, 3, 2]},
            {"name": "lengths", "dtype": "int64", "shape": [1], "maximum": 3},
        ],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [1, 2]}],
    }
    shown = {"inputs": entry["inputs"], "outputs": entry["outputs"], "milliseconds": milliseconds}
    model = helper.make_model(helper.make_graph([], "fake", [], []), producer_name=graph or json.dumps(shown))
    (root / "k2.onnx").write_bytes(model.SerializeToString())
    return Engine.from_json({**entry, **changes})


def run_module(code: str, *, node: str) -> Any:
    """What a program in JavaScript gives to `tell`, with our modules as its folder."""
    program = f"const tell = (value) => console.log(JSON.stringify(value));\n{code}"
    command = [node, "--input-type=module", "-"]
    done = subprocess.run(command, input=program, cwd=MODULES, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
