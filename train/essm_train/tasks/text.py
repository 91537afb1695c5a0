"""Text as bytes: token ids byte + 2 after PAD 0 and BOS 1, and a split into three contiguous parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError
from essm_train.share import ALL, Share
from essm_train.tasks.corpus import read_documents

PAD, BOS, OFFSET = 0, 1, 2
VOCAB_SIZE = 256 + OFFSET
VALIDATION, TEST = 0.05, 0.05  # shares of the file: the validation bytes lie just before the test bytes, which end it
FEW = 20  # documents; of fewer, the cuts between them are too far from where the splits should begin

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Text:
    """The bytes of each split. No byte is in two of them, and no sequence crosses from one to another."""

    train: Bytes
    val: Bytes
    test: Bytes

    def __getitem__(self, split: str) -> Bytes:
        part: Bytes = getattr(self, split)
        return part


def read_text(path: Path, shortest: int) -> Text:
    """Read and split a file of any encoding, JSON Lines, Parquet, or a folder of these (see corpus).

    InputError if it cannot be read or a split is below `shortest` bytes.
    """
    data, starts = read_documents(path)
    return _checked(path, split_text(data, starts), shortest)


def split_text(data: Bytes, starts: npt.NDArray[np.int64] | None = None) -> Text:
    """The first 90 % to train on, the next 5 % to look at, the last 5 % to report; cut where a document starts, if any can."""
    test = len(data) - round(TEST * len(data))
    val = test - round(VALIDATION * len(data))
    if starts is not None and len(starts) >= FEW:
        val, test = (int(starts[np.argmin(np.abs(starts - place))]) for place in (val, test))
    return Text(data[:val], data[val:test], data[test:])


def _checked(path: Path, text: Text, shortest: int) -> Text:
    size = sum(len(text[split]) for split in ("train", "val", "test"))
    if size == 0:
        raise InputError(f"{path}: is empty; expected text")
    needed = min(len(text.train), len(text.val), len(text.test))
    if needed < shortest:
        least = round(shortest / min(VALIDATION, TEST))
        raise InputError(f"{path}: {size} bytes are too few; expected about {least} so that each split fills a sequence")
    return text


def windows(data: Bytes, length: int) -> tuple[Tokens, Tokens]:
    """Non-overlapping sequences over all of `data`: inputs and targets [n, length].

    Each starts with BOS and each byte is a target once; the rest of the last row is PAD, which no loss counts.
    """
    rows = -(-len(data) // length)
    targets = np.full(rows * length, PAD, dtype=np.int64)
    targets[: len(data)] = data.astype(np.int64) + OFFSET
    return shift(targets.reshape(rows, length))


def sample(data: Bytes, rows: int, length: int, rng: np.random.Generator, share: Share = ALL) -> tuple[Tokens, Tokens]:
    """Sequences that start anywhere in `data`: inputs and targets [rows, length], or a share of these rows."""
    starts = rng.integers(0, len(data) - length + 1, size=rows)[share.rows(rows)]
    return shift(data[starts[:, None] + np.arange(length)].astype(np.int64) + OFFSET)


def shift(targets: Tokens) -> tuple[Tokens, Tokens]:
    """The inputs that predict these targets: BOS, then every target but the last."""
    inputs = np.roll(targets, 1, axis=1)
    inputs[:, 0] = BOS
    return inputs, targets
