"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from essm_deploy.errors import BuildError, OutputError


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text through a temporary neighbour, then rename it into place."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes through a temporary neighbour, then rename it into place."""
    with disk_errors(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document, indented, with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def replace_directory(path: Path, fill: Callable[[Path], None], *, ours: Callable[[Path], bool]) -> None:
    """Fill a new directory beside `path`, then swap it in.

    `ours(path)` says whether an existing, non-empty directory may be replaced; OutputError if not. If `fill` raises, what
    was there before is untouched.
    """
    check_replaceable(path, ours)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            staging.chmod(0o755)
            fill(staging)
            _swap(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def check_replaceable(path: Path, ours: Callable[[Path], bool]) -> None:
    """OutputError unless `path` is free, an empty directory, or a directory that this tool wrote."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(f"{path}: exists and is not a directory; choose another output with -o")
    if path.is_dir() and any(path.iterdir()) and not ours(path):
        raise OutputError(f"{path}: holds files that essm-deploy did not write; choose another output with -o")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals (no space, no permission) into one clear line."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"{path}: cannot write ({error.strerror or error}); nothing was left half-written") from error


def _swap(staging: Path, path: Path) -> None:
    """Rename twice: directories cannot be replaced in one step. A failure between the two puts the old one back."""
    if not path.exists():
        staging.rename(path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    path.rename(old / "was")
    try:
        staging.rename(path)
    except OSError:
        (old / "was").rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
