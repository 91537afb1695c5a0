"""ONNX Runtime: the graph itself is the engine; building it means proving that the runtime takes it whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from essm_deploy.errors import BuildError, EssmError
from essm_deploy.graph.builder import OPSET
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.session import open_session


class OnnxRuntimeBackend:
    """The CPU provider of ONNX Runtime."""

    name = "onnxruntime"

    def missing(self) -> str | None:
        """Never anything: it is part of the base install."""
        return None

    def requirements(self) -> dict[str, Any]:
        """Opset 20 came with ONNX Runtime 1.17; 1.20 is the oldest that is tested."""
        return {"onnxruntime": ">=1.20", "opset": OPSET}

    def build(self, root: Path, engine: Engine) -> Engine:
        """Open the graph once as an app will, without fallback."""
        try:
            open_session(root, engine, threads=1)
        except EssmError as error:
            raise BuildError(f"{engine.files[0]}: ONNX Runtime refuses the engine ({error})") from error
        return engine
