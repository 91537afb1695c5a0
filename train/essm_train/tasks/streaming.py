"""A corpus too large for a disk: a data set of Hugging Face `datasets`, read as training goes.

    --data hf:cerebras/SlimPajama-627B         --data hf:deepmind/pg19         --data hf:FOLDER (of Parquet or JSON Lines)

Training reads the shuffled documents one after the other, joined by newlines: step n takes the n-th block of bytes, so a
batch is a function of the seed and the step. A resumed run reads up to its step again. What is judged never changes: the
first bytes of the splits validation and test are read once and kept in `<cache>/evaluation`. `<cache>` is $ESSM_CACHE, or
the user's cache directory.

The hub cannot be reached here: run on local Parquet and JSON Lines through the same calls, and not on SlimPajama-627B or
PG-19.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from essm_deploy.errors import EssmError, InputError, UnavailableError
from essm_train.tasks.corpus import COLUMN, SEPARATOR

PREFIX = "hf:"
SPLITS = {"train": "train", "val": "validation", "test": "test"}  # by our names
SHUFFLED = 10_000  # documents among which the next one is drawn

Bytes = npt.NDArray[np.uint8]
Open = Callable[[str, "int | None"], Iterable[Any]]  # a split and, for training, the shuffle's seed -> rows


class Streamed:
    """The text of a data set. val and test are arrays; training bytes come in blocks."""

    def __init__(self, name: str, source: Open, evaluation_bytes: int) -> None:
        self.name, self.source = name, source
        self.val, self.test = (self._cached(split, evaluation_bytes) for split in ("val", "test"))
        self._reader: tuple[int, int, Iterator[bytes]] | None = None  # seed, bytes given out, the rest
        self._left = b""

    def __getitem__(self, split: str) -> Bytes:
        part: Bytes = getattr(self, split)
        return part

    def block(self, step: int, size: int, seed: int) -> Bytes:
        """Bytes step * size to (step + 1) * size of the shuffled stream, which begins anew, shuffled anew, where it ends."""
        if self._reader is None or self._reader[0] != seed or self._reader[1] > step * size:
            self._reader, self._left = (seed, 0, self._bytes(seed)), b""
        _, position, stream = self._reader
        while position < step * size:
            position += len(self._take(stream, min(1 << 20, step * size - position)))
        self._reader = (seed, (step + 1) * size, stream)
        return np.frombuffer(self._take(stream, size), np.uint8)

    def _take(self, stream: Iterator[bytes], size: int) -> bytes:
        parts, have = [self._left], len(self._left)
        while have < size:
            parts.append(next(stream))
            have += len(parts[-1])
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]

    def _bytes(self, seed: int) -> Iterator[bytes]:
        for turn in range(2**31):
            empty = True
            for text in self._texts("train", seed + turn):
                empty = False
                yield text + SEPARATOR
            if empty:
                raise InputError(f"{PREFIX}{self.name}: split 'train' has no text in it")

    def _texts(self, split: str, seed: int | None) -> Iterator[bytes]:
        try:
            for row in self.source(SPLITS[split], seed):
                text = row.get(COLUMN) if isinstance(row, dict) else None
                if not isinstance(text, str):
                    found = sorted(row)[:8] if isinstance(row, dict) else type(row).__name__
                    raise InputError(f"{PREFIX}{self.name}: a row holds {found}; expected the string {COLUMN!r}")
                if text:
                    yield text.encode("utf-8", "surrogatepass")
        except OSError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise EssmError(
                f"{PREFIX}{self.name}: the stream broke off ({reason}); the same command goes on from the last saved state"
            ) from error

    def _cached(self, split: str, size: int) -> Bytes:
        """The first bytes of a held-out split, the same in every run."""
        path = evaluation_cache() / f"{hashlib.sha256(self.name.encode()).hexdigest()[:16]}-{split}-{size}.bin"
        if not path.exists():
            text = self._first(split, size)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(text)
            temporary.replace(path)
        return np.frombuffer(path.read_bytes(), np.uint8)

    def _first(self, split: str, size: int) -> bytes:
        parts, have = [], 0
        for text in self._texts(split, None):
            parts.append(text)
            have += len(text) + len(SEPARATOR)
            if have >= size:
                break
        if not parts:
            raise InputError(f"{PREFIX}{self.name}: split {SPLITS[split]!r} has no text in it")
        return SEPARATOR.join(parts)[:size]


def evaluation_cache() -> Path:
    """Where the held-out bytes lie; it need not exist."""
    chosen = os.environ.get("ESSM_CACHE")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("essm-deploy"))) / "evaluation"


def open_stream(name: str, evaluation_bytes: int) -> Streamed:
    """The data set of that name on the hub, or in that folder. UnavailableError where `datasets` is missing."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{PREFIX}{name}: streaming needs {error.name}: pip install 'essm-deploy[corpora]'") from error

    def rows(split: str, seed: int | None) -> Iterable[Any]:
        try:
            found = datasets.load_dataset(name, split=split, streaming=True)
        except (ValueError, datasets.exceptions.DatasetsError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{PREFIX}{name}: no split {split!r} ({reason}); expected train, validation and test") from error
        shuffled: Iterable[Any] = found if seed is None else found.shuffle(seed=seed, buffer_size=SHUFFLED)
        return shuffled

    return Streamed(name, rows, evaluation_bytes)
