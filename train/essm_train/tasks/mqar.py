"""Multi-query associative recall: which value followed this key? Sequences are made up as training goes (mqar_rules).

Zoology trains on five lengths at once; a step takes one of them, by its share. The metric is the share of right answers
over all questions of all lengths. Zoology's sets are finite (180,000 sequences for training); here no sequence comes twice.
Data: the word `generated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.errors import UsageError
from essm_train.model import ModelConfig
from essm_train.settings import CommonSettings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Whole
from essm_train.tasks.classification import check_positive, sizes, smaller
from essm_train.tasks.mqar_rules import IGNORED, Recall, recall

HELD_OUT = {"val": 1, "test": 2}
EVAL_BATCH = 32
GENERATED = "generated"


@dataclass(frozen=True)
class Data:
    vocab_size: int
    seq_lens: tuple[int, ...]
    pairs: tuple[int, ...]
    shares: tuple[int, ...]
    power: float
    interval: int
    val_samples: int
    test_samples: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


class Mqar:
    """The Task. An epoch of the trainer is data.interval steps; `samples` are sequences."""

    name = "mqar"
    metric = "accuracy"
    direction = "maximize"

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device, data = recipe, device, recipe.data
        self.kinds = kinds(data)
        self.steps_per_epoch = data.interval
        self.model_config = ModelConfig(seq_len=max(data.seq_lens), vocab_size=data.vocab_size, **sizes(recipe))

    def batch(self, step: int, share: Share = ALL) -> Batch:
        rng = np.random.default_rng([self.recipe.train.seed, 3, step])
        shares = np.array(self.recipe.data.shares, np.float64)
        kind = self.kinds[int(rng.choice(len(shares), p=shares / shares.sum()))]
        return self._batch(kind, self.recipe.train.batch_size, rng, share)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the questions."""
        smoothing = self.recipe.train.label_smoothing
        return F.cross_entropy(
            outputs.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing
        )

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Share of the questions that are answered with the right value; the sequences are always the same."""
        was_training = model.training
        model.eval()
        right = asked = 0
        for number, kind in enumerate(self.kinds):
            for start in range(0, self._each(split), EVAL_BATCH):
                rows = min(EVAL_BATCH, self._each(split) - start)
                part = self._batch(kind, rows, np.random.default_rng([HELD_OUT[split], 7, number, start]))
                best = model(part.inputs, None, budget).argmax(dim=2)
                right += int((best == part.targets).sum())
                asked += rows * kind.pairs
        model.train(was_training)
        return right / asked

    def samples(self, split: str) -> int:
        return self._each(split) * len(self.kinds)

    def config_fields(self) -> dict[str, Any]:
        return {"task": "text-generation"}

    def source(self) -> str:
        lengths = ", ".join(f"{kind.pairs} pairs in {kind.seq_len} tokens" for kind in self.kinds)
        size = self.kinds[0].vocab_size
        return f"Multi-query associative recall by Zoology's rules, made up in training: {lengths}; vocabulary {size}."

    def _each(self, split: str) -> int:
        return self.recipe.data.val_samples if split == "val" else self.recipe.data.test_samples

    def _batch(self, kind: Recall, rows: int, rng: np.random.Generator, share: Share = ALL) -> Batch:
        inputs, targets = (torch.from_numpy(array).to(self.device) for array in recall(kind, rows, rng, share))
        return Batch(inputs, None, targets, whole=Whole(rows))


def kinds(data: Data) -> list[Recall]:
    """One set of rules a length."""
    return [Recall(data.vocab_size, length, pairs, data.power) for length, pairs in zip(data.seq_lens, data.pairs, strict=True)]


def build(recipe: Recipe, data: Path, device: torch.device) -> Mqar:
    """The task. UsageError where there is data to read."""
    if str(data) != GENERATED:
        raise UsageError(f"{data}: mqar makes its sequences up and reads no data; write --data {GENERATED}")
    return Mqar(recipe, device)


def check(recipe: Recipe) -> None:
    """UsageError where the lists differ in length or a kind does not fit."""
    data = recipe.data
    check_positive(recipe, "interval", "val_samples", "test_samples")
    if not len(data.seq_lens) == len(data.pairs) == len(data.shares) or min((0, *data.shares)) < 0 or not sum(data.shares):
        raise UsageError(
            f"data.seq_lens {list(data.seq_lens)}, pairs {list(data.pairs)}, shares {list(data.shares)}; expected as many of "
            "each, and shares that are not all 0"
        )
    for kind in kinds(data):
        kind.check()


def smoke(recipe: Recipe) -> Recipe:
    """Two kinds of short sequences."""
    small: Recipe = smaller(
        recipe, vocab_size=128, seq_lens=(32, 64), pairs=(2, 4), shares=(1, 1), interval=2, val_samples=4, test_samples=4
    )
    return small


def smoke_data(folder: Path) -> Path:
    """Nothing is needed."""
    del folder
    return Path(GENERATED)
