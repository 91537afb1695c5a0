"""On the real device: what TensorRT's engine inspector says of every engine of a bundle, held against the fp32 island."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from essm_deploy.backends.tensorrt.inspector import LayersProof, inspected_layers, prove_layers
from essm_deploy.errors import IntegrityError, UnavailableError, UsageError
from essm_deploy.files import write_json
from essm_deploy.runtime.manifest import MANIFEST_NAME, Engine, Manifest, read_manifest, verify_files
from essm_deploy.runtime.requirements import TENSORRT
from essm_deploy.runtime.session import open_session
from essm_deploy.runtime.strict import JsonObject

Layers = Callable[[Path, Engine], tuple[str, str]]
"""Opens an engine and returns the inspector's JSON, and what ran it ("tensorrt_rtx 1.7.1 on NVIDIA GeForce RTX 3090")."""


def verify_inspected(root: Path, layers: Layers | None = None) -> dict[str, LayersProof]:
    """Prove every TensorRT engine of the bundle at `root` from its own layers, and write into the manifest that it was done.

    Raises UnavailableError if an engine cannot be opened here, VerificationError at the first layer that is not FLOAT where it
    has to be, UsageError if there is no TensorRT engine, and IntegrityError; the manifest is then as it was.
    """
    manifest = read_manifest(root)
    verify_files(root, manifest)
    compiled = [engine for engine in manifest.engines if not TENSORRT.keys().isdisjoint(engine.requires)]
    if not compiled:
        raise UsageError(
            f"{root} holds no TensorRT engine: --engine reads their layers; `essm-deploy verify` replays any engine"
        )
    proofs, runners = dict[str, LayersProof](), dict[str, str]()
    for engine in compiled:
        if not engine.graph:
            raise IntegrityError(f"{root}: engine {engine.id} does not name its graph, so nothing can be proved of it")
        text, runners[engine.id] = (layers or _opened)(root, engine)
        proofs[engine.id] = prove_layers(root / engine.graph[0], inspected_layers(text, engine.id), engine.id)
    write_json(root / MANIFEST_NAME, _recorded(manifest, proofs, runners).to_json())
    return proofs


def _opened(root: Path, engine: Engine) -> tuple[str, str]:
    from essm_deploy.runtime.tensorrt import TensorRtSession

    session = open_session(root, engine)
    if not isinstance(session, TensorRtSession):
        raise UnavailableError(f"engine {engine.id!r} is not run by TensorRT here, so there is nothing to inspect")
    try:
        return session.layers(), session.provider
    finally:
        session.close()


def _recorded(manifest: Manifest, proofs: Mapping[str, LayersProof], runners: Mapping[str, str]) -> Manifest:
    def updated(engine: Engine) -> Engine:
        if engine.id not in proofs:
            return engine
        found: JsonObject = {**proofs[engine.id].to_json(), "by": runners[engine.id]}
        return replace(engine, proof={**(engine.proof or {}), "inspected": found})

    return replace(manifest, engines=tuple(updated(engine) for engine in manifest.engines))
