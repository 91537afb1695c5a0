"""The elastic checkpoint: a directory of `config.json`, `model.safetensors`, `quality.json` and `README.md`.

Reading maps the tensors into memory and copies nothing, so that a file of several gigabytes can be opened and sliced on a
small machine. Only safetensors is read: a pickle can run code. docs/checkpoint-format.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import CheckpointError
from essm_deploy.files import replace_directory, write_json, write_text

FORMAT_VERSION = "1.0"
TENSORS_FILE = "model.safetensors"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_MAX_JSON_BYTES = 16 * 2**20
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
_SCAN_ELEMENTS = 2**22


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a family expects: `elastic` tensors have the channel index k as their leading axis."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["F32", "F64"] = "F32"
    elastic: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. `tensors` are read-only views of the mapped file (or prefixes of such views)."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, NDArray[Any]] = field(repr=False)
    quality: Mapping[str, Any] | None = None
    card: str = ""

    def tensor(self, name: str) -> NDArray[Any]:
        """The tensor of that name; CheckpointError if there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: no tensor named {name!r}") from None


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint directory without knowing its family: files present, JSON sane, safetensors header true.

    Raises CheckpointError for anything that is missing, truncated, pickled, or of a newer format.
    """
    root = Path(path)
    _refuse_pickles(root)
    if not root.is_dir():
        raise CheckpointError(f"{root}: expected a checkpoint directory with config.json and {TENSORS_FILE}")
    config = _read_json(root / "config.json")
    _check_version(root, config)
    quality = _read_json(root / "quality.json") if (root / "quality.json").exists() else None
    card = (root / "README.md").read_text(encoding="utf-8", errors="replace") if (root / "README.md").exists() else ""
    return Checkpoint(root, config, map_tensors(root / TENSORS_FILE), quality, card)


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read-only views, one a tensor, of a mapped safetensors file."""
    header, start = _header(path)
    data = np.memmap(path, dtype=np.uint8, mode="r")
    return {name: _view(path, data, start, name, entry) for name, entry in header.items() if name != "__metadata__"}


def content_hash(checkpoint: Checkpoint) -> str:
    """sha256 over config and tensors: what an engine and its measurements depend on."""
    digest = hashlib.sha256(json.dumps(checkpoint.config, sort_keys=True).encode())
    for name in sorted(checkpoint.tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(checkpoint.tensors[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def validate_tensors(checkpoint: Checkpoint, table: Iterable[TensorSpec]) -> None:
    """Compare the tensors with what the config promises, then look for NaN and Inf. Raises CheckpointError."""
    expected = {spec.name: spec for spec in table}
    missing = sorted(expected.keys() - checkpoint.tensors.keys())
    extra = sorted(checkpoint.tensors.keys() - expected.keys())
    where = checkpoint.path / TENSORS_FILE
    if missing:
        raise CheckpointError(f"{where}: {len(missing)} tensor(s) missing, first {missing[0]!r}; config.json asks for it")
    if extra:
        raise CheckpointError(f"{where}: {len(extra)} tensor(s) that config.json does not describe, first {extra[0]!r}")
    for name, spec in expected.items():
        _check_tensor(where, spec, checkpoint.tensors[name])


def write_checkpoint(
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    quality: Mapping[str, Any] | None,
    card: str,
    beside: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
) -> None:
    """Write a checkpoint directory atomically; one that this tool wrote before is replaced, anything else is refused.

    Tensors are streamed one after the other, so a mapped one is never loaded whole. float32 and float64 only. `beside` are
    further safetensors files by name, which are the app's and not the compiler's.
    """

    def fill(root: Path) -> None:
        write_json(root / "config.json", dict(config))
        write_tensors(root / TENSORS_FILE, tensors)
        for name, others in (beside or {}).items():
            write_tensors(root / name, others)
        if quality is not None:
            write_json(root / "quality.json", dict(quality))
        write_text(root / "README.md", card)

    replace_directory(Path(path), fill, ours=_is_checkpoint)


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """A safetensors file, streamed (the library's writer wants every tensor in memory at once)."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _dtype_name(name, array.dtype),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _refuse_pickles(root: Path) -> None:
    if root.is_file():
        kind = "a pickle can run code when it is read" if root.suffix in _PICKLES else "not a directory"
        raise CheckpointError(f"{root}: {kind}; expected a directory with config.json and {TENSORS_FILE}")
    if root.is_dir() and not (root / TENSORS_FILE).exists():
        pickled = next((p for p in sorted(root.iterdir()) if p.suffix in _PICKLES), None)
        if pickled is not None:
            raise CheckpointError(f"{pickled}: pickles are not read; save the weights as {TENSORS_FILE}")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: larger than {_MAX_JSON_BYTES} bytes; expected a small JSON document")
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, read {type(value).__name__}")
    return value


def _check_version(root: Path, config: Mapping[str, Any]) -> None:
    version = config.get("format_version")
    if not isinstance(version, str) or not version.split(".")[0].isdigit():
        raise CheckpointError(f"{root / 'config.json'}: format_version is {version!r}; expected a string like '1.0'")
    if int(version.split(".")[0]) > int(FORMAT_VERSION.split(".")[0]):
        raise CheckpointError(
            f"{root / 'config.json'}: format_version {version} is newer than {FORMAT_VERSION}; upgrade essm-deploy"
        )


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and the offset of the data. The library judges the file; it does not tell the offsets."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a sound safetensors file ({str(error).splitlines()[0]})") from None
    return header, 8 + size


def _view(path: Path, data: NDArray[np.uint8], start: int, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise CheckpointError(f"{path}: {name} is {entry['dtype']}; expected F32 (weights) or F64 (the filter bank)")
    begin, end = entry["data_offsets"]
    view: NDArray[Any] = data[start + begin : start + end].view(dtype).reshape(entry["shape"])
    return view


def _check_tensor(where: Path, spec: TensorSpec, array: NDArray[Any]) -> None:
    if array.shape != spec.shape:
        raise CheckpointError(f"{where}: {spec.name} has shape {list(array.shape)}; config.json asks {list(spec.shape)}")
    if array.dtype != _DTYPES[spec.dtype]:
        raise CheckpointError(f"{where}: {spec.name} is {array.dtype}; expected {spec.dtype}")
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _SCAN_ELEMENTS):
        if not np.isfinite(flat[begin : begin + _SCAN_ELEMENTS]).all():
            raise CheckpointError(f"{where}: {spec.name} holds NaN or Inf; the training run diverged")


def _dtype_name(name: str, dtype: np.dtype[Any]) -> str:
    for text, known in _DTYPES.items():
        if dtype == known:
            return text
    raise CheckpointError(f"{name}: dtype {dtype} cannot be written; expected float32 or float64")


def _is_checkpoint(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / TENSORS_FILE).is_file()
