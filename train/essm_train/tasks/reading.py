"""Reading what somebody downloaded: bounded, without pickles, without unpacking, one clear line for what is wrong.

A file is refused before it fills the memory, an archive's members are read and never written to disk (so no name in it can
leave a folder), and a file that ends too early says so: the usual cause is an interrupted download.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UsageError

MAX_FILE = 4 * 2**30  # bytes; above any single file of the public sets that are read whole
MAX_MEMBER = 64 * 2**20  # bytes of one unpacked member of an archive

_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20


def read_file(path: Path, expected: str, limit: int = MAX_FILE) -> bytes:
    """The file's bytes, unpacked if they are gzip's. InputError, naming what was `expected`, if that cannot be."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; expected {expected}")
        if path.stat().st_size > limit:
            raise InputError(f"{path}: {path.stat().st_size} bytes; expected at most {limit}, for {expected}")
        with path.open("rb") as stream:
            packed = stream.read(2) == _GZIP
        return _gunzip(path, limit) if packed else path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected {expected}") from error


def _gunzip(path: Path, limit: int) -> bytes:
    """Unpack block by block, so that a small file that unpacks without end is stopped."""
    parts, size = [], 0
    try:
        with gzip.open(path) as stream:
            while part := stream.read(_BLOCK):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise InputError(f"{path}: unpacks to more than {limit} bytes; is it the right file?")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: gzip data ends or breaks early ({error}); download it again") from error
    return b"".join(parts)


def read_text_file(path: Path, expected: str, limit: int = MAX_FILE) -> str:
    """The same as UTF-8. InputError says at which byte the encoding breaks."""
    data = read_file(path, expected, limit)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: byte {error.start} (line {line}) is not UTF-8; expected {expected}") from error


class Archive:
    """A zip file whose members are read one at a time. Names serve for sorting only; nothing is unpacked to disk."""

    def __init__(self, path: Path, expected: str) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{path}: not a whole zip file ({reason}); expected {expected}; download it again") from error

    def names(self, suffix: str = "") -> list[str]:
        """The members, sorted, that end so; directories are left out."""
        return sorted(name for name in self._zip.namelist() if name.endswith(suffix) and not name.endswith("/"))

    def read(self, name: str, limit: int = MAX_MEMBER) -> bytes:
        """One member's bytes. InputError if it is too large or broken."""
        size = self._zip.getinfo(name).file_size
        if size > limit:
            raise InputError(f"{self.path}: member {name!r} has {size} bytes; expected at most {limit}")
        try:
            with self._zip.open(name) as stream:
                return stream.read(limit)
        except (zipfile.BadZipFile, zlib.error, EOFError, lzma.LZMAError, NotImplementedError, RuntimeError) as error:
            raise InputError(f"{self.path}: member {name!r} is broken ({error}); download the file again") from error


def load_arrays(path: Path, names: tuple[str, ...], expected: str) -> dict[str, npt.NDArray[np.generic]]:
    """Named arrays of an npz file. Nothing pickled is read. InputError if one is missing or broken."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: a single array; expected {expected}")
            missing = [name for name in names if name not in found.files]
            if missing:
                raise InputError(f"{path}: holds {sorted(found.files)[:8]} and no {missing[0]!r}; expected {expected}")
            return {name: found[name] for name in names}
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: not a sound npz file without pickles ({reason}); expected {expected}") from error


def first_existing(folder: Path, names: tuple[str, ...], layout: str) -> Path:
    """The first of `names` that is in the folder. UsageError, with the layout, if none is."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; {layout}")
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise UsageError(f"{folder}: holds none of {', '.join(names)}; {layout}")


def fraction(name: str) -> float:
    """A number in [0, 1) that depends on the name alone: the same file falls into the same split on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:6], "big") / 2**48
