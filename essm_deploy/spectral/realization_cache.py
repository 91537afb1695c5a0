"""Realizations on disk: finding one takes seconds, checking one takes milliseconds."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essm_deploy.atomic import whole_file
from essm_deploy.spectral.allpass import impulse_states
from essm_deploy.spectral.bank import Bank
from essm_deploy.spectral.bank_cache import directory
from essm_deploy.spectral.realization import NoRealization, Realization, realize

# Raise it with every change to the search: a stored answer is then looked for anew.
ALGORITHM = 2

Float64 = NDArray[np.float64]


def realization_of(filters: Float64, sigma: Float64 | None = None) -> Realization | NoRealization:
    """`realize` at its default tolerances, remembered in this process and on disk; filters are [K, L], sigma [K] or unknown.

    The eigenvalues weigh the channels in the search: without them the noise of a float64 bank hides the last ones.
    """
    weights = np.ones(len(filters)) if sigma is None else np.asarray(sigma, np.float64)
    content = np.ascontiguousarray(filters, "<f8").tobytes() + weights.astype("<f8").tobytes()
    return _remembered(content, filters.shape, os.environ.get("ESSM_CACHE"))


@functools.lru_cache(maxsize=64)
def _remembered(content: bytes, shape: tuple[int, int], cache: str | None) -> Realization | NoRealization:
    numbers = np.frombuffer(content, "<f8").astype(np.float64)
    filters, sigma = numbers[: shape[0] * shape[1]].reshape(shape), numbers[shape[0] * shape[1] :]
    path = directory() / f"realization-v{ALGORITHM}-{hashlib.sha256(content).hexdigest()[:32]}-{shape[0]}.npz"
    stored = _read(path, filters)
    if stored is not None:
        return stored
    found = realize(Bank(filters, sigma, "embedded"))
    if isinstance(found, Realization):
        _write(path, found)
    return found


def _read(path: Path, filters: Float64) -> Realization | None:
    """A stored realization whose residual is what it says; anything else is a miss."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            A, B, C, residual = (np.asarray(archive[name], np.float64) for name in ("A", "B", "C", "residual"))
        states = C @ impulse_states(A, B, filters.shape[1])
        measured = np.linalg.norm(states - filters, axis=1) / np.linalg.norm(filters, axis=1)
        if not np.allclose(measured, residual, rtol=1e-2, atol=1e-12):
            return None
        radius = float(np.abs(np.linalg.eigvals(A.T)).max())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, np.linalg.LinAlgError):
        return None
    return Realization(A, B, C, filters.shape[1], residual, radius)


def _write(path: Path, found: Realization) -> None:
    """Keep it; a full or read-only disk is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez(file, A=found.A, B=found.B, C=found.C, residual=found.residual)
