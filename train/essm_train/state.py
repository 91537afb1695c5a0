"""The training state on disk: whole or not at all, and read without running what it holds (weights_only)."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from essm_deploy.errors import BuildError, UsageError


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write through a temporary neighbour, flush to the disk, rename: a kill or a full disk leaves the old one.

    BuildError where it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        with contextlib.suppress(OSError):
            temporary.unlink()
        kept = "the last good one is whole" if path.exists() else "there was none before"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BuildError(
            f"{path}: the training state cannot be written ({reason}); {kept}: make room and repeat the command"
        ) from error


def load_state(path: Path, recipe: dict[str, Any]) -> dict[str, Any] | None:
    """The state to resume from, or None where there is none. UsageError if it is unreadable or of another recipe."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, KeyError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path}: not a readable training state ({reason}); start again with --no-resume") from error
    if not isinstance(state, dict) or state.get("recipe") != recipe:
        made = "was made by another recipe, seed or --init"
        raise UsageError(f"{path}: {made}; repeat that one, or start again with --no-resume")
    return state
