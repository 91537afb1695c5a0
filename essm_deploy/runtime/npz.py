"""Arrays in .npz files, written whole and read with suspicion: no pickle, no header believed before it is checked."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from essm_deploy.atomic import whole_file
from essm_deploy.runtime.tensors import Array


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays`, uncompressed; the file at `path` is replaced as a whole or not at all."""
    with whole_file(path, mode=0o600) as file:
        np.savez(file, allow_pickle=False, **{key: np.asarray(array) for key, array in arrays.items()})


def read_array(
    archive: zipfile.ZipFile, name: str, dtype: type[Any], shape: tuple[int, ...] | None, most: int = 2**40
) -> Array:
    """The array `name` if its header declares exactly `dtype` and `shape` (None: one axis of at most `most` entries).

    Raises ValueError, KeyError, EOFError or zipfile.BadZipFile for anything else.
    """
    with archive.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{name} has the npy version {version}")
        found, fortran, kind = npy.read_array_header_1_0(file)
        fits = len(found) == 1 and found[0] <= most if shape is None else found == shape
        if not fits or kind != np.dtype(dtype) or fortran:
            raise ValueError(f"{name} is {kind} {list(found)}, expected {np.dtype(dtype)} {list(shape or ('n',))}")
        size = prod(found) * kind.itemsize
        content = file.read(size)
        if len(content) != size or file.read(1):
            raise ValueError(f"{name} does not have the size that it declares")
    return np.frombuffer(content, kind).reshape(found)
