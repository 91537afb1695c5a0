"""A byte-level language model: sequences of a text that start with BOS, next-byte cross-entropy, bits per byte.

Data: a text file of any kind, JSON Lines, Parquet, a folder of these (corpus), or hf:NAME, a data set that is streamed
(streaming).
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.errors import UsageError
from essm_train.byte_card import write_card
from essm_train.card import general_card
from essm_train.chunked import CHUNK
from essm_train.model import ModelConfig
from essm_train.settings import ByteSettings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Result, Whole
from essm_train.tasks.streaming import PREFIX, Streamed, open_stream
from essm_train.tasks.text import OFFSET, PAD, VOCAB_SIZE, Text, read_text, sample, shift, windows

EVAL_BATCH = 4
STREAMED_TEST = 1000 * 2048  # bytes of a streamed data set's held-out splits: the paper's cache of 1,000 segments

Recipe = ByteSettings


class Bytes:
    """The Task of a text. An epoch of the trainer is `text.interval` steps."""

    name = "bytes"
    metric = "bits_per_byte"
    direction = "minimize"

    def __init__(self, path: Path, settings: ByteSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.text = open_text(path, settings)
        self.steps_per_epoch = settings.text.interval
        self.model_config = make_model_config(settings)

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.settings.train.epochs * self.steps_per_epoch

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Sequences that start anywhere in the training bytes, or the next ones of a stream, which every rank reads."""
        (rows, length), seed = self.shape(step), self.settings.train.seed
        if isinstance(self.text, Streamed):
            block = self.text.block(step, self.settings.train.batch_size * self.settings.text.seq_len, seed)
            pair = shift(block.reshape(rows, length)[share.rows(rows)].astype(np.int64) + OFFSET)
        else:
            pair = sample(self.text.train, rows, length, np.random.default_rng([seed, 3, step]), share)
        inputs, targets = (torch.from_numpy(x).to(self.device) for x in pair)
        return Batch(inputs, None, targets, whole=Whole(rows))

    def shape(self, step: int) -> tuple[int, int]:
        """Sequences and tokens of a step's batch: many short ones at first, as many tokens in long ones later."""
        text, train = self.settings.text, self.settings.train
        if step >= text.short_share * self.steps:
            return train.batch_size, text.seq_len
        return train.batch_size * (text.seq_len // text.short_len), text.short_len

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the targets that are bytes."""
        smoothing = self.settings.train.label_smoothing
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Bits per byte over the split; over its first text.val_bytes bytes for "val"."""
        data = self.text[split][: self.samples(split)]
        return bits_per_byte(model, *windows(data, self.settings.text.seq_len), budget, self.device)

    def samples(self, split: str) -> int:
        size = len(self.text[split])
        return min(size, self.settings.text.val_bytes) if split == "val" else size

    def config_fields(self) -> dict[str, Any]:
        return {"task": "text-generation"}

    def source(self) -> str:
        """For the general card, which a streamed text has; any other has a card of its own."""
        kept = f"its first {len(self.text.val)} and {len(self.text.test)} bytes of the held-out splits are judged"
        return f"The data set {self.text.name}, streamed; {kept}." if isinstance(self.text, Streamed) else "A text."


def open_text(path: Path, settings: ByteSettings) -> Text | Streamed:
    """What --data names. InputError or UsageError, one line, where it is no text."""
    name = str(path)
    if name.startswith(PREFIX):
        return open_stream(name.removeprefix(PREFIX), max(settings.text.val_bytes, STREAMED_TEST))
    return read_text(path, settings.text.seq_len)


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, inputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], budget: int, device: torch.device
) -> float:
    """-(1 / n) sum log2 p over the n targets that are not PAD; inputs and targets [rows, length]."""
    was_training = model.training
    model.eval()
    nats = 0.0
    for start in range(0, len(inputs), EVAL_BATCH):
        part = slice(start, start + EVAL_BATCH)
        logits = model(torch.from_numpy(inputs[part]).to(device), None, budget).float().flatten(0, 1)
        wanted = torch.from_numpy(targets[part]).to(device).flatten()
        nats += float(F.cross_entropy(logits, wanted, ignore_index=PAD, reduction="sum"))
    model.train(was_training)
    return nats / math.log(2.0) / int(np.count_nonzero(targets != PAD))


def make_model_config(settings: ByteSettings) -> ModelConfig:
    """The language model's sizes."""
    m = settings.model
    return ModelConfig(
        hidden_size=m.hidden_size,
        num_hidden_layers=m.num_hidden_layers,
        seq_len=settings.text.seq_len,
        k_max=m.k_max,
        vocab_size=VOCAB_SIZE,
        dropout=m.dropout,
        drop_path=m.drop_path,
    )


def build(recipe: ByteSettings, data: Path, device: torch.device) -> Bytes:
    return Bytes(data, recipe, device)


def check(recipe: ByteSettings) -> None:
    """UsageError unless the lengths fit into each other and into the training step's chunks."""
    text = recipe.text
    if text.short_len < CHUNK or text.short_len % CHUNK or text.seq_len % text.short_len:
        raise UsageError(
            f"text.short_len is {text.short_len}; expected a multiple of {CHUNK} that divides text.seq_len {text.seq_len}"
        )
    for key in ("interval", "val_bytes"):
        if getattr(text, key) < 1:
            raise UsageError(f"text.{key} is {getattr(text, key)}; expected 1 or more")
    if not 0.0 <= text.short_share <= 1.0:
        raise UsageError(f"text.short_share is {text.short_share}; expected 0 to 1")


def smoke(recipe: ByteSettings) -> ByteSettings:
    """A narrow model, short sequences and four steps, which learn next to nothing."""
    m, t = recipe.model, recipe.text
    model = dataclasses.replace(m, hidden_size=min(16, m.hidden_size), num_hidden_layers=min(2, m.num_hidden_layers))
    lengths = {"seq_len": min(2 * CHUNK, t.seq_len), "short_len": min(CHUNK, t.short_len)}
    text = dataclasses.replace(t, interval=2, val_bytes=4096, **lengths)
    return dataclasses.replace(recipe, model=model, text=text).with_train(epochs=2, eval_every=1)


def smoke_data(folder: Path) -> Path:
    """Words drawn at random from a small vocabulary, enough of them for the longest sequence of a recipe that ships."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(2, 9, 500)]
    path = folder / "words.txt"
    path.write_text(" ".join(words[i] for i in rng.integers(0, len(words), 15000)), encoding="ascii")
    return path


def card(task: Bytes, result: Result) -> str:
    """With the Markov chain to beat, which needs the whole text."""
    return general_card(task, result) if isinstance(task.text, Streamed) else write_card(task, result)
