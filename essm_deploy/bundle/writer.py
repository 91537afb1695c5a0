"""Writing a bundle: everything is put together and replayed beside its place, then swapped in as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from essm_deploy.bundle.vectors import VECTORS, Arrays, write_vectors
from essm_deploy.bundle.verify import EngineCheck, verify_bundle
from essm_deploy.files import replace_directory, write_json, write_text
from essm_deploy.runtime.files import sha256_file
from essm_deploy.runtime.manifest import MANIFEST_NAME, Budget, Engine, Manifest, ModelInfo

BUILD_CONFIG = "build-config.json"
CARD = "README.md"


@dataclass(frozen=True)
class BundleContent:
    """What goes into a bundle beside its engines."""

    model: ModelInfo
    target: dict[str, Any]
    overflow: str
    limits: dict[str, Any]
    budgets: tuple[Budget, ...]
    default: str
    build_config: Mapping[str, Any]
    card: str
    inputs: Arrays
    outputs: Mapping[str, Arrays]


def write_bundle(path: Path, content: BundleContent, emit: Callable[[Path], tuple[Engine, ...]]) -> list[EngineCheck]:
    """Let `emit` write the engines, add the rest, open and replay the whole, and only then put it at `path`.

    Raises what `verify_bundle` and `replace_directory` raise; `path` is then as it was.
    """
    checks: list[EngineCheck] = []

    def fill(root: Path) -> None:
        engines = emit(root)
        write_vectors(root / VECTORS, content.inputs, content.outputs)
        write_json(root / BUILD_CONFIG, dict(content.build_config))
        write_text(root / CARD, content.card)
        write_json(root / MANIFEST_NAME, _manifest(root, content, engines).to_json())
        checks.extend(verify_bundle(root)[1])

    replace_directory(path, fill, ours=is_bundle)
    return checks


def is_bundle(path: Path) -> bool:
    """Whether the directory looks like one that `write_bundle` wrote."""
    return (path / MANIFEST_NAME).is_file() and (path / BUILD_CONFIG).is_file()


def _manifest(root: Path, content: BundleContent, engines: tuple[Engine, ...]) -> Manifest:
    return Manifest(
        model=content.model,
        target=content.target,
        overflow=content.overflow,
        limits=content.limits,
        budgets=content.budgets,
        engines=engines,
        default=content.default,
        files={p.name: sha256_file(p) for p in sorted(root.iterdir()) if p.name != MANIFEST_NAME},
    )
