"""Banks on disk, in the user's cache directory: written whole, verified when read, computed again when damaged.

A cache never fails a build: what cannot be read is a miss, and what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from essm_deploy.atomic import whole_file

# Raise it with every change that alters a single bit of a bank.
ALGORITHM = 1

Filters: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]


def directory() -> Path:
    """ESSM_CACHE, or the user's cache directory, with `hankel` below it. It need not exist."""
    chosen = os.environ.get("ESSM_CACHE")
    if chosen:
        return Path(chosen) / "hankel"
    import platformdirs

    return Path(platformdirs.user_cache_dir("essm-deploy")) / "hankel"


def read(name: str, channels: int | None, length: int) -> Filters | None:
    """Filters [channels, length] and sigma [channels]; None if absent, damaged or of another shape."""
    try:
        path = _path(name)
        if path.stat().st_size > 16 * (length + 1) * (channels or length) + 4096:
            return None
        # np.load would leave its own file open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            filters, sigma, digest = archive["filters"], archive["sigma"], str(archive["sha256"])
    except (OSError, ImportError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    expected = (channels if channels is not None else len(sigma), length)
    if filters.shape != expected or sigma.shape != expected[:1] or filters.dtype != "<f8" or sigma.dtype != "<f8":
        return None
    return (filters, sigma) if digest == _digest(filters, sigma) else None


def write(name: str, filters: NDArray[np.float64], sigma: NDArray[np.float64]) -> None:
    """Keep a bank; a full or read-only disk is not an error."""
    with contextlib.suppress(OSError, ImportError):
        path = _path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez(file, filters=filters, sigma=sigma, sha256=np.array(_digest(filters, sigma)))


def _path(name: str) -> Path:
    return directory() / f"v{ALGORITHM}-{name}.npz"


def _digest(filters: NDArray[np.float64], sigma: NDArray[np.float64]) -> str:
    hasher = hashlib.sha256()
    for array in (filters, sigma):
        hasher.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return hasher.hexdigest()
