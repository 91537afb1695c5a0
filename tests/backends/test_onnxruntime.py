"""ONNX Runtime's providers: the one that was asked for or an error, never another one in silence, and TF32 off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from essm_deploy.backends import find_backend
from essm_deploy.backends.emit import prepare
from essm_deploy.backends.onnxruntime import OnnxRuntimeBackend
from essm_deploy.errors import BuildError, UnavailableError, UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.runtime.session import open_session
from essm_deploy.targets.description import find_target

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def pretend(monkeypatch: pytest.MonkeyPatch, *providers: str, came_up: Sequence[str] = (CPU,)) -> list[Any]:
    """Make this ONNX Runtime say that it has the providers; returns what sessions are opened with.

    They come up on the providers `came_up`, and compute on the CPU.
    """
    asked: list[Any] = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            asked.append((options.get_session_config_entry("session.disable_cpu_ep_fallback"), providers))
            super().__init__(path, providers=[CPU])

        def get_providers(self) -> list[str]:
            return list(came_up)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    return asked


def test_without_the_provider_the_package_that_brings_it_is_named() -> None:
    with pytest.raises(UnavailableError, match=f"not {CUDA}: pip install onnxruntime-gpu"):
        find_backend(find_target("rtx3090"), "onnxruntime", "cuda")


def test_the_cuda_provider_runs_without_tf32_and_without_fallback_and_its_engines_say_so(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend(monkeypatch, CUDA)
    backend = find_backend(find_target("rtx3090"), "onnxruntime", "cuda")
    assert backend.requirements()["provider"] == CUDA
    with pytest.raises(BuildError, match="no fallback is allowed"):  # it came up on the CPU: that is an error
        prepare(tmp_path, open_checkpoint(keywords), [2], 1, backend).sequence(2)
    assert asked == [("1", [(CUDA, {"use_tf32": "0"})])]


def test_an_engine_that_comes_up_on_cuda_says_so_wherever_it_is_opened(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend(monkeypatch, CUDA, came_up=(CUDA, CPU))  # ONNX Runtime always lists its CPU provider after the others
    backend = find_backend(find_target("rtx3090"), "onnxruntime", "cuda")
    engine = prepare(tmp_path, open_checkpoint(keywords), [2], 1, backend).sequence(2)
    assert engine.requires["provider"] == CUDA
    session = open_session(tmp_path, engine)
    assert (session.provider, set(map(str, asked))) == (CUDA, {str(("1", [(CUDA, {"use_tf32": "0"})]))})
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(UnavailableError, match=f"needs the provider '{CUDA}', this onnxruntime has {CPU}:"):
        open_session(tmp_path, engine)


def test_the_cpu_needs_no_requirement() -> None:
    assert "provider" not in OnnxRuntimeBackend().requirements()
    assert OnnxRuntimeBackend().missing() is None


@pytest.mark.parametrize(
    ("target", "backend", "provider", "message"),
    [
        ("cpu", None, "cuda", "goes with --backend onnxruntime"),
        ("rtx3090", "tensorrt-rtx", "cuda", "goes with --backend onnxruntime"),
        ("cpu", "tensorrt", None, "has the backends onnxruntime, not tensorrt"),
        ("h100", "tensorrt-rtx", None, "has the backends tensorrt, not tensorrt-rtx"),
        ("rtx3090", "onnxruntime", None, "needs --provider cuda"),
    ],
)
def test_what_does_not_go_together_is_said(target: str, backend: str | None, provider: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_backend(find_target(target), backend, provider)
