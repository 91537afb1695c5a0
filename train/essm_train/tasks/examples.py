"""Labelled sequences as the classification tasks hold them: compact in memory, widened row by row into batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
Rows = tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]


class Examples(Protocol):
    """What one split holds."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The class of each."""

    def __len__(self) -> int:
        """How many."""

    def rows(self, index: Index) -> Rows:
        """inputs [n, T] int64 tokens or [n, T, input_size] float32, and the valid lengths [n], or None where all are T."""

    def steps(self, index: Index) -> int:
        """T of `rows(index)`."""


@dataclass(frozen=True)
class TokenRows:
    """Sequences of differing lengths in one flat array: `flat[offsets[i]:offsets[i + 1]]` is the i-th. Padded with 0."""

    flat: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Of every sequence."""
        return np.diff(self.offsets)

    def rows(self, index: Index) -> Rows:
        lengths = self.lengths[index]
        tokens = np.zeros((len(index), self.steps(index)), np.int64)
        for place, row in enumerate(index):
            tokens[place, : lengths[place]] = self[int(row)]
        return tokens, lengths

    def steps(self, index: Index) -> int:
        return int(self.lengths[index].max(initial=1))


def pack(sequences: Iterable[npt.NDArray[Any]], labels: Sequence[int], dtype: Any = np.uint8) -> TokenRows:
    """One flat array of the sequences."""
    parts = [np.asarray(sequence, dtype) for sequence in sequences]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    flat = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return TokenRows(flat, offsets, np.asarray(labels, np.int64))


@dataclass(frozen=True)
class PixelRows:
    """Grey images uint8 [n, side, side], read row by row as one brightness a step: (x / 255 - mean) / std."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    mean: float
    std: float

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Index) -> Rows:
        return as_steps(self.images[index], self.mean, self.std), None

    def steps(self, index: Index) -> int:
        del index
        return int(self.images[0].size)


def as_steps(images: npt.NDArray[np.uint8], mean: float, std: float) -> npt.NDArray[np.float32]:
    """[n, side, side] uint8 -> [n, side², 1] float32, normalised."""
    flat = images.reshape(len(images), -1, 1).astype(np.float32) / np.float32(255.0)
    steps: npt.NDArray[np.float32] = (flat - np.float32(mean)) / np.float32(std)
    return steps


def brightness(images: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of the pixels as fractions of white, in blocks: the float copy of a data set is large."""
    total, squares = 0.0, 0.0
    for start in range(0, len(images), 1024):
        block = images[start : start + 1024].astype(np.float64) / 255.0
        total, squares = total + float(block.sum()), squares + float((block**2).sum())
    mean = total / images.size
    return round(mean, 5), round(max(squares / images.size - mean**2, 1e-8) ** 0.5, 5)
