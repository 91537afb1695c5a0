"""The training state on disk: whole or not at all, and read without running what it holds (weights_only)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from essm_deploy.errors import UsageError


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write through a temporary neighbour, flush to the disk, rename: a kill leaves the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


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
        raise UsageError(f"{path}: was made by another recipe or seed; repeat that one, or start again with --no-resume")
    return state
