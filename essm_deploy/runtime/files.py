"""The files of a bundle: names that stay inside it, and bytes that are those that were written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from essm_deploy.errors import BundleError, IntegrityError

_BLOCK = 1 << 20


def check_relative(path: object, where: str) -> str:
    """Return `path` if it names a file below a bundle on every operating system; BundleError if it could leave it."""
    if not isinstance(path, str) or not path or len(path) > 1024:
        raise BundleError(f"{where} has a file name that is not a short string")
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or ":" in path or any(part in ("", ".", "..") for part in parts):
        raise BundleError(f"{where} names the file {path[:80]!r}, expected a plain relative path inside the bundle")
    return path


def resolve_file(root: Path, path: str) -> Path:
    """The regular file `path` of the bundle at `root`.

    Raises IntegrityError if it is missing, not a regular file, or reached through a link that leaves the bundle.
    """
    check_relative(path, str(root))
    try:
        base = root.resolve(strict=True)
        target = (base / path).resolve(strict=True)
    except (OSError, RuntimeError):
        raise IntegrityError(f"{root} lacks the file {path!r} that its manifest names: copy the whole bundle again") from None
    if not target.is_relative_to(base):
        raise IntegrityError(f"{root}: {path!r} is a link that leaves the bundle: copy the file itself into it")
    if not target.is_file():
        raise IntegrityError(f"{root}: {path!r} is not a regular file: copy the whole bundle again")
    return target


def sha256_file(path: Path) -> str:
    """The sha256 of a file in lower-case hex, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def verify_hashes(root: Path, files: Mapping[str, str]) -> None:
    """Compare every file with its sha256; IntegrityError names the first that is missing or changed."""
    for path, expected in files.items():
        target = resolve_file(root, path)
        try:
            found = sha256_file(target)
        except OSError as error:
            raise IntegrityError(f"{root}: {path!r} cannot be read: {os.strerror(error.errno or 0)}") from None
        if found != expected:
            raise IntegrityError(
                f"{root}: {path!r} has sha256 {found[:12]}..., the manifest says {expected[:12]}...: "
                "it was changed after the build; copy or build the bundle again"
            )
