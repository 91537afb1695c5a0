"""Verifying a bundle: hashes, requirements, and a replay of the test vectors through every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from essm_deploy.bundle.judges import Judged, check_or_judge
from essm_deploy.bundle.vectors import VECTORS, Arrays, bound_of, read_vectors
from essm_deploy.errors import IntegrityError, VerificationError
from essm_deploy.runtime.engines import with_cuda_graph
from essm_deploy.runtime.manifest import Engine, Manifest, read_manifest, verify_files


@dataclass(frozen=True)
class EngineCheck:
    """How far one engine is from the float64 reference (relative, 2-norm); `judged` is what was replayed."""

    engine: str
    budget: str
    max_rel_error: float
    bound: float
    judged: Judged = "engine"


def verify_bundle(root: Path, cuda_graph: bool | None = None) -> tuple[Manifest, list[EngineCheck]]:
    """Check every file and replay every engine. IntegrityError or VerificationError names the first that fails.

    `cuda_graph` is how TensorRT engines are run, in the manifest that is returned too; None as the manifest says.
    """
    manifest = with_cuda_graph(read_manifest(root), cuda_graph)
    verify_files(root, manifest)
    if VECTORS not in manifest.files:
        raise IntegrityError(f"{root}: has no {VECTORS}; build the bundle again")
    inputs, outputs = read_vectors(root / VECTORS)
    return manifest, [
        check_engine(root, manifest.engines, engine, inputs, _outputs_of(root, outputs, engine))
        for engine in manifest.engines
        if engine.kind != "anchor"  # it has no outputs of the model's; a stream past L relies on it
    ]


def check_engine(root: Path, engines: Iterable[Engine], engine: Engine, inputs: Arrays, expected: Arrays) -> EngineCheck:
    """Compare one engine, or its graph where it cannot run, with the reference's outputs. VerificationError above the bound."""
    judged, error = check_or_judge(root, engines, engine, inputs, expected)
    check = EngineCheck(engine.id, engine.budget, error, bound_of(engine), judged)
    if not check.max_rel_error <= check.bound:
        raise VerificationError(
            f"engine {check.engine} differs from the float64 reference by {check.max_rel_error:.1e} (relative), "
            f"more than {check.bound:.0e}; it must not be used"
        )
    return check


def _outputs_of(root: Path, outputs: dict[str, dict[str, NDArray[Any]]], engine: Engine) -> Arrays:
    if engine.budget not in outputs:
        raise IntegrityError(f"{root / VECTORS}: holds no outputs for budget {engine.budget}")
    return outputs[engine.budget]
