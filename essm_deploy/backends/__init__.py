"""ONNX graph -> engine. Backends build; they do not run."""

from __future__ import annotations

from essm_deploy.backends.base import Backend
from essm_deploy.backends.onnxruntime import OnnxRuntimeBackend
from essm_deploy.errors import UnavailableError
from essm_deploy.targets.description import Target

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (OnnxRuntimeBackend(),)}


def find_backend(target: Target) -> Backend:
    """The first of the target's backends that is here; UnavailableError says what each one lacks and what to do."""
    lacking = []
    for name in target.backends:
        backend = BACKENDS.get(name)
        missing = backend.missing() if backend else f"essm-deploy has no {name} backend yet; choose --target cpu"
        if backend and missing is None:
            return backend
        lacking.append(str(missing))
    raise UnavailableError(f"target {target.name!r} cannot be compiled for here: {'; '.join(lacking)}")
