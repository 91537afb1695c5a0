"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from essm_deploy.atomic import whole_file
from essm_deploy.errors import BuildError, OutputError

try:
    import fcntl
except ImportError:  # not a POSIX system: what killed runs left behind is the user's to remove
    fcntl = None  # type: ignore[assignment]

_OURS = "essm-deploy-"
_OLD = "old"


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text through a temporary neighbour, then rename it into place."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes through a temporary neighbour, then rename it into place."""
    with disk_errors(path), whole_file(path) as file:
        file.write(content)


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
        prefix = f".{path.name}."
        _put_back(path, prefix)
        with staging(path.parent, prefix) as folder:
            new = folder / "new"
            new.mkdir()
            new.chmod(0o755)
            fill(new)
            _swap(new, path, folder / _OLD)


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


@contextmanager
def staging(folder: Path | None = None, prefix: str = "") -> Iterator[Path]:
    """A directory of this run alone in `folder`, or where the system keeps temporary files; it is gone when the block ends.

    Those that killed runs left there under the same prefix are removed first. A run holds a lock (flock) on its directory,
    which the kernel ends with it, and which keeps systemd-tmpfiles away too. Where nothing can be locked, nothing is removed.
    """
    folder = folder or Path(tempfile.gettempdir())
    for left in _abandoned(folder, prefix):
        shutil.rmtree(left, ignore_errors=True)
    path, lock = _made(folder, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _made(folder: Path, prefix: str) -> tuple[Path, int | None]:
    """It is locked before it has a name that others look for."""
    path = folder / f"{prefix}{_OURS}{os.urandom(8).hex()}"
    new = path.with_name(f"{path.name}.new")
    new.mkdir(mode=0o700)
    lock = _lock(new)
    new.rename(path)
    return path, lock


def _abandoned(folder: Path, prefix: str) -> Iterator[Path]:
    """Directories of ours whose run is gone; each stays locked until the next one is asked for."""
    ours = re.compile(re.escape(prefix + _OURS) + "[0-9a-f]{16}")
    found = list[Path]()
    with suppress(OSError):  # a folder that may be written to, and not listed
        found = [path for path in folder.iterdir() if ours.fullmatch(path.name)]
    for path in found:
        lock = _lock(path)
        if lock is not None:
            try:
                yield path
            finally:
                os.close(lock)


def _lock(path: Path) -> int | None:
    """What holds the lock of a directory until it is closed; None where a run holds it, and where it cannot be locked."""
    if fcntl is None:
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _swap(new: Path, path: Path, old: Path) -> None:
    """Rename twice: directories cannot be replaced in one step. A failure between the two puts the old one back."""
    try:
        if path.exists():
            path.rename(old)
        new.rename(path)
    except BaseException:  # Ctrl-C among them, which comes before or after any of the renames
        if old.exists() and not path.exists():
            old.rename(path)
        raise


def _put_back(path: Path, prefix: str) -> None:
    """Do it for a run that was killed between the two."""
    for left in _abandoned(path.parent, prefix):
        if (left / _OLD).exists() and not path.exists():
            (left / _OLD).rename(path)
