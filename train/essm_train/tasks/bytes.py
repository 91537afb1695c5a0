"""A byte-level language model: sequences of a text that start with BOS, next-byte cross-entropy, bits per byte."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_train.model import ModelConfig
from essm_train.settings import ByteSettings
from essm_train.tasks import Batch
from essm_train.tasks.text import PAD, VOCAB_SIZE, read_text, sample, windows

EVAL_BATCH = 4


class Bytes:
    """The Task of a text file, which is read into memory. An epoch of the trainer is `text.interval` steps."""

    name = "bytes"
    metric = "bits_per_byte"
    direction = "minimize"

    def __init__(self, path: Path, settings: ByteSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.text = read_text(path, settings.text.seq_len)
        self.steps_per_epoch = settings.text.interval
        self.model_config = make_model_config(settings)

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.settings.train.epochs * self.steps_per_epoch

    def batch(self, step: int) -> Batch:
        rows, length = self.shape(step)
        rng = np.random.default_rng([self.settings.train.seed, 3, step])
        inputs, targets = (torch.from_numpy(x).to(self.device) for x in sample(self.text.train, rows, length, rng))
        return Batch(inputs, None, targets)

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
