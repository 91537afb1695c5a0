"""Texts on disk as bytes: one file of any kind, JSON Lines, Parquet, or a folder of such files.

Of JSON Lines and Parquet the column `text` is read. Documents are joined by a newline, and where there are several the
splits are cut between two of them. Everything is read into memory: at most MAX_BYTES of text. Larger corpora are streamed
(streaming).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UnavailableError

COLUMN = "text"
MAX_BYTES = 2**30
ENDINGS = (".txt", ".md", ".jsonl", ".jsonl.gz", ".parquet")
SEPARATOR = b"\n"


def read_documents(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All bytes, and where each document begins. InputError for what cannot be read, or is too much."""
    parts: list[bytes] = []
    starts, size = [], 0
    for document in _documents(path):
        if parts:
            parts.append(SEPARATOR)
            size += len(SEPARATOR)
        starts.append(size)
        parts.append(document)
        size += len(document)
        if size > MAX_BYTES:
            raise InputError(f"{path}: more than {MAX_BYTES} bytes of text; stream it (--data hf:FOLDER), or give a part of it")
    return np.frombuffer(b"".join(parts), np.uint8), np.array(starts, np.int64)


def _documents(path: Path) -> Iterator[bytes]:
    if not path.is_dir():
        yield from _of_file(path)
        return
    files = sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS) and file.is_file())
    if not files:
        raise InputError(f"{path}: is a directory; expected a text file, or a folder with some of {', '.join(ENDINGS)}")
    for file in files:
        yield from _of_file(file)


def _of_file(path: Path) -> Iterator[bytes]:
    try:
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            yield from _of_lines(path)
        elif path.suffix == ".parquet":
            yield from _of_parquet(path)
        else:
            if path.stat().st_size > MAX_BYTES:
                raise InputError(f"{path}: {path.stat().st_size} bytes; expected at most {MAX_BYTES}")
            yield path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected a text file") from error


def _of_lines(path: Path) -> Iterator[bytes]:
    """One JSON object a line, one line in memory at a time."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _text_of(path, f"line {number}", _parsed(path, number, line))
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: gzip data ends or breaks early ({error}); download it again") from error


def _parsed(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: line {number} is not JSON in UTF-8 ({reason}); is the file cut off?") from error


def _text_of(path: Path, where: str, row: Any) -> bytes:
    if not isinstance(row, dict) or not isinstance(row.get(COLUMN), str):
        found = sorted(row)[:8] if isinstance(row, dict) else type(row).__name__
        raise InputError(f"{path}: {where} holds {found}; expected an object with the string {COLUMN!r}")
    text: str = row[COLUMN]
    return text.encode("utf-8", "surrogatepass")


def _of_parquet(path: Path) -> Iterator[bytes]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{path}: reading Parquet needs {error.name}: pip install 'essm-deploy[corpora]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if COLUMN not in file.schema_arrow.names:
                raise InputError(f"{path}: columns {file.schema_arrow.names[:8]}; expected the column {COLUMN!r}")
            for batch in file.iter_batches(batch_size=256, columns=[COLUMN]):
                yield from (_text_of(path, "a row", row) for row in batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a whole Parquet file ({reason}); is the download complete?") from error
