"""ONNX graph -> engine. Backends build; they do not run."""

from __future__ import annotations

from essm_deploy.backends.base import Backend
from essm_deploy.backends.onnxruntime import PROVIDERS, OnnxRuntimeBackend
from essm_deploy.backends.tensorrt import FLAVOURS, TensorRtBackend
from essm_deploy.errors import UnavailableError, UsageError
from essm_deploy.targets.description import Target

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (OnnxRuntimeBackend(),)}
"""Those that build the same for every target; the TensorRTs are made for one."""


def find_backend(target: Target, name: str | None = None, provider: str | None = None) -> Backend:
    """The first of the target's backends that is here, or the one called `name`; `provider` is one of PROVIDERS.

    UnavailableError says what each one lacks and what to do; UsageError if only ONNX Runtime's providers were meant.
    """
    if provider is not None and name != "onnxruntime":
        raise UsageError(f"--provider {provider} goes with --backend onnxruntime")
    if name is not None and name not in (*target.backends, "onnxruntime"):
        raise UsageError(f"target {target.name!r} has the backends {', '.join(target.backends)}, not {name}")
    if target.kind == "gpu" and name == "onnxruntime" and provider in (None, "cpu"):
        raise UsageError(f"target {target.name!r} is a GPU: --backend onnxruntime needs --provider cuda")
    lacking = []
    for entry in [name] if name is not None else target.backends:
        backend = OnnxRuntimeBackend(PROVIDERS[provider]) if provider else backend_for(entry, target)
        missing = backend.missing()
        if missing is None:
            return backend
        lacking.append(missing)
    raise UnavailableError(f"target {target.name!r} cannot be compiled for here: {'; or '.join(lacking)}")


def backend_for(name: str, target: Target) -> Backend:
    """The backend of that name as it builds for the target."""
    if name in FLAVOURS and target.compute_capability is not None:
        return TensorRtBackend(FLAVOURS[name], (target.compute_capability,))
    return BACKENDS[name]
