"""ONNX Runtime: the graph itself is the engine; building it means proving that the runtime takes it whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from essm_deploy.errors import BuildError, EssmError
from essm_deploy.graph.builder import OPSET
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.requirements import DEFAULT_PROVIDER
from essm_deploy.runtime.session import open_session

PROVIDERS = {"cpu": DEFAULT_PROVIDER, "cuda": "CUDAExecutionProvider"}
"""What `--provider` takes. The TensorRT provider is not there: it has no switch for TF32."""


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """ONNX Runtime on one execution provider; no node may run on another one."""

    provider: str = DEFAULT_PROVIDER
    name: str = "onnxruntime"

    def missing(self) -> str | None:
        """Never anything for the CPU, which is part of the base install; the package with the provider otherwise."""
        have = onnxruntime.get_available_providers()
        if self.provider in have:
            return None
        return f"onnxruntime here has {', '.join(have)} and not {self.provider}: pip install onnxruntime-gpu in its place"

    def requirements(self) -> dict[str, Any]:
        """Opset 20 came with ONNX Runtime 1.17; 1.20 is the oldest that is tested."""
        provider = {} if self.provider == DEFAULT_PROVIDER else {"provider": self.provider}
        return {"onnxruntime": ">=1.20", "opset": OPSET, **provider}

    def build(self, root: Path, engine: Engine) -> Engine:
        """Open the graph once as an app will, without fallback."""
        try:
            open_session(root, engine, threads=1)
        except EssmError as error:
            raise BuildError(f"{engine.files[0]}: ONNX Runtime refuses the engine ({error})") from error
        return engine
