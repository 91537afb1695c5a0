"""Engines that were built before, in the user's cache directory.

    <cache>/engines/<key>/engine, log, proof.json       `<cache>` is $ESSM_CACHE, or the user's cache directory

The key is a hash of everything that an engine depends on: the bytes of the graph and of the files that it refers to, TensorRT's
flavour and version, the compute capabilities, and this package's version. A cache never fails a build: what cannot be read or
is damaged is a miss, and what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from essm_deploy import __version__
from essm_deploy.files import staging
from essm_deploy.runtime.files import sha256_file
from essm_deploy.spectral import bank_cache

# Raise it with every change of what is built from one graph.
ALGORITHM = 2

MAX_ENTRIES = 64
MAX_BYTES = 2**29
"""Of one engine: a larger one takes less time to build than the disk that it would fill is worth."""


@dataclass(frozen=True)
class Entry:
    """The place of one engine in the cache."""

    folder: Path

    @classmethod
    def of(cls, files: Iterable[Path], **conditions: Any) -> Entry:
        """Where the engine made of `files` under the conditions (JSON values) is, or would be."""
        parts = {"algorithm": ALGORITHM, "essm_deploy": __version__, "files": [sha256_file(p) for p in files], **conditions}
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return cls(bank_cache.directory().with_name("engines") / key)

    def fetch(self, engine: Path, log: Path) -> dict[str, Any] | None:
        """Copy what is kept to `engine` and `log` and return its proof; None if there is nothing sound."""
        try:
            record: dict[str, Any] = json.loads((self.folder / "proof.json").read_text())
            if sha256_file(self.folder / "engine") != record["sha256"]:
                return None
            shutil.copyfile(self.folder / "engine", engine)
            shutil.copyfile(self.folder / "log", log)
            (self.folder / "proof.json").touch()  # entries that are of use are the last to go
            proof: dict[str, Any] = dict(record["proof"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return proof

    def keep(self, engine: Path, log: Path, proof: dict[str, Any]) -> None:
        """Store an engine that was just built, whole or not at all."""
        with contextlib.suppress(OSError):
            if engine.stat().st_size > MAX_BYTES:
                return
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with staging(self.folder.parent, ".new.") as new:
                shutil.copyfile(engine, new / "engine")
                shutil.copyfile(log, new / "log")
                record = {"schema_version": "1.0", "sha256": sha256_file(engine), "proof": proof}
                (new / "proof.json").write_text(json.dumps(record))
                shutil.rmtree(self.folder, ignore_errors=True)
                new.replace(self.folder)
            _prune(self.folder.parent)


def _prune(directory: Path) -> None:
    """Let the entries go that were not used for longest."""
    entries = sorted(directory.glob("*/proof.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[MAX_ENTRIES:]:
        shutil.rmtree(path.parent, ignore_errors=True)
