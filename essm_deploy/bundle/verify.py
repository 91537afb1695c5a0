"""Verifying a bundle: hashes, requirements, and a replay of the test vectors through every engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from essm_deploy.bundle.vectors import FP32_BOUND, VECTORS, max_relative_error, read_vectors
from essm_deploy.errors import IntegrityError, VerificationError
from essm_deploy.runtime.manifest import Engine, Manifest, read_manifest, verify_files
from essm_deploy.runtime.session import open_session


@dataclass(frozen=True)
class EngineCheck:
    """How far one engine is from the float64 reference (relative, 2-norm)."""

    engine: str
    budget: str
    max_rel_error: float
    bound: float


def verify_bundle(root: Path) -> tuple[Manifest, list[EngineCheck]]:
    """Check every file and replay every engine. IntegrityError or VerificationError names the first that fails."""
    manifest = read_manifest(root)
    verify_files(root, manifest)
    if VECTORS not in manifest.files:
        raise IntegrityError(f"{root}: has no {VECTORS}; build the bundle again")
    return manifest, [check_engine(root, engine) for engine in manifest.engines]


def check_engine(root: Path, engine: Engine) -> EngineCheck:
    """Replay the test vectors of the engine's budget. VerificationError above the bound."""
    inputs, outputs = read_vectors(root / VECTORS)
    if engine.budget not in outputs:
        raise IntegrityError(f"{root / VECTORS}: holds no outputs for budget {engine.budget}")
    error = max_relative_error(open_session(root, engine), inputs, outputs[engine.budget])
    return judged(EngineCheck(engine.id, engine.budget, error, FP32_BOUND))


def judged(check: EngineCheck) -> EngineCheck:
    """The check itself if it passes; VerificationError if not."""
    if not check.max_rel_error <= check.bound:
        raise VerificationError(
            f"engine {check.engine} differs from the float64 reference by {check.max_rel_error:.1e} (relative), "
            f"more than {check.bound:.0e}; it must not be used"
        )
    return check
