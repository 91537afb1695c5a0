"""What the classification tasks share: labelled sequences in three splits, cross-entropy, accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.errors import InputError, UsageError
from essm_train.model import ModelConfig
from essm_train.settings import CommonSettings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Whole
from essm_train.tasks.examples import Examples, Index

SPLITS = ("train", "val", "test")
EVAL_TOKENS = 16384  # in one call of `evaluate`, about: bounds its memory
MEGABATCH = 16  # batches whose rows are sorted by length before they are cut: less padding, and still a random order


@dataclass(frozen=True)
class Labelled:
    """A data set ready to train on. source: licence and what keeps the splits apart, in words. fields: for config.json."""

    splits: Mapping[str, Examples]
    labels: Sequence[str]
    source: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        empty = [split for split in SPLITS if len(self.splits[split]) == 0]
        if empty:
            raise InputError(f"split {empty[0]!r} has no samples ({self.sizes()}); give more data")

    def sizes(self) -> str:
        """The samples of each split."""
        return ", ".join(f"{split} {len(self.splits[split])}" for split in SPLITS)


class Classification:
    """The Task of a labelled data set. `rows` is what one sample takes in a batch: 1, or 2 where it is a pair."""

    metric = "accuracy"
    direction = "maximize"
    rows = 1

    def __init__(
        self,
        name: str,
        data: Labelled,
        model_config: ModelConfig,
        recipe: CommonSettings,
        device: torch.device,
        val_samples: int,
    ) -> None:
        self.name, self.data, self.recipe, self.device = name, data, recipe, device
        self.model_config, self.val_samples = model_config, val_samples
        self.steps_per_epoch = -(-len(data.splits["train"]) // recipe.train.batch_size)
        self._order: tuple[int, list[Index]] = (-1, [])

    def batch(self, step: int, share: Share = ALL) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, self._batches(epoch)
        index, examples = self._order[1][position], self.data.splits["train"]
        mine = index[share.rows(len(index))]
        inputs, lengths = examples.rows(mine)
        missing = examples.steps(index) - inputs.shape[1]
        if missing:
            inputs = np.pad(inputs, [(0, 0), (0, missing), *[(0, 0)] * (inputs.ndim - 2)])
        return self._tensors(inputs, lengths, examples.labels[mine], Whole(len(index)))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy against labels [B]."""
        return F.cross_entropy(self.logits(outputs.float()), targets, label_smoothing=self.recipe.train.label_smoothing)

    def logits(self, outputs: Tensor) -> Tensor:
        """Of each class, from the model's outputs."""
        return outputs

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Share of the split's samples whose best-scored class is the right one; of "val", val_samples, always the same."""
        scores, labels = self.scores(model, split, budget)
        return float((scores.argmax(dim=1) == labels).float().mean())

    @torch.no_grad()
    def scores(self, model: nn.Module, split: str, budget: int) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and labels [n] of the split, on the CPU."""
        examples, was_training = self.data.splits[split], model.training
        model.eval()
        scores, labels = [], []
        for index in self._parts(split):
            part = self._tensors(*examples.rows(index), examples.labels[index])
            scores.append(self.logits(model(part.inputs, part.lengths, budget).float()).cpu())
            labels.append(torch.from_numpy(examples.labels[index]))
        model.train(was_training)
        return torch.cat(scores), torch.cat(labels)

    def samples(self, split: str) -> int:
        size = len(self.data.splits[split])
        return min(size, self.val_samples) if split == "val" and self.val_samples else size

    def config_fields(self) -> dict[str, Any]:
        labels = {str(index): label for index, label in enumerate(self.data.labels)}
        return {"task": "sequence-classification", "id2label": labels, **self.data.fields}

    def source(self) -> str:
        return f"{self.data.source} Samples: {self.data.sizes()}."

    def _batches(self, epoch: int) -> list[Index]:
        """The epoch's batches: a shuffle of the training samples, those of like length together."""
        rng = np.random.default_rng([self.recipe.train.seed, 2, epoch])
        order, size = rng.permutation(len(self.data.splits["train"])), self.recipe.train.batch_size
        lengths = getattr(self.data.splits["train"], "lengths", None)
        if lengths is None:
            return [order[start : start + size] for start in range(0, len(order), size)]
        blocks = [order[start : start + size * MEGABATCH] for start in range(0, len(order), size * MEGABATCH)]
        sorted_blocks = [block[np.argsort(lengths[block], kind="stable")] for block in blocks]
        batches = [block[start : start + size] for block in sorted_blocks for start in range(0, len(block), size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _parts(self, split: str) -> Iterator[Index]:
        """What is judged of the split, in calls of about EVAL_TOKENS, the shortest sequences first."""
        examples = self.data.splits[split]
        order = np.sort(np.random.default_rng(0).permutation(len(examples))[: self.samples(split)])
        lengths = getattr(examples, "lengths", None)
        order = order if lengths is None else order[np.argsort(lengths[order], kind="stable")]
        size = max(1, EVAL_TOKENS // (self.rows * self.model_config.seq_len))
        return (order[start : start + size] for start in range(0, len(order), size))

    def _tensors(self, inputs: npt.NDArray[Any], lengths: Index | None, labels: Index, whole: Whole | None = None) -> Batch:
        rows, targets = (torch.from_numpy(array).to(self.device) for array in (inputs, labels))
        valid = None if lengths is None else torch.from_numpy(lengths).to(self.device)
        return Batch(rows, valid, targets, whole=whole)


def three_way(count: int, seed: int = 0) -> dict[str, Index]:
    """A fixed shuffle of `count` samples in 80, 10 and 10 %: for sets that come in one piece."""
    order = np.random.default_rng(seed).permutation(count)
    first, second = round(0.8 * count), round(0.9 * count)
    return {"train": np.sort(order[:first]), "val": np.sort(order[first:second]), "test": np.sort(order[second:])}


def token_config(recipe: CommonSettings, seq_len: int, vocab_size: int, num_labels: int) -> ModelConfig:
    """A model of tokens with a head on their mean."""
    return ModelConfig(seq_len=seq_len, vocab_size=vocab_size, num_labels=num_labels, **sizes(recipe))


def vector_config(recipe: CommonSettings, seq_len: int, input_size: int, num_labels: int) -> ModelConfig:
    """A model of vectors with a head on their mean."""
    return ModelConfig(seq_len=seq_len, input_size=input_size, num_labels=num_labels, **sizes(recipe))


def sizes(recipe: CommonSettings) -> dict[str, Any]:
    """What [model] says, as ModelConfig spells it."""
    return {**dataclasses.asdict(recipe.model), "checkpointing": recipe.train.checkpointing}


def smaller(recipe: Any, **data: Any) -> Any:
    """A recipe of some seconds: two epochs, a narrow model, and the given keys of [data]."""
    model = dataclasses.replace(recipe.model, hidden_size=16, num_hidden_layers=2, k_max=4)
    budgets = dataclasses.replace(recipe.budgets, trained=(2, 4))
    train = dataclasses.replace(recipe.train, epochs=2, batch_size=4, eval_every=1, save_every=1, accumulate=1)
    section = dataclasses.replace(recipe.data, **data)
    return dataclasses.replace(recipe, model=model, budgets=budgets, train=train, data=section)


def check_positive(recipe: Any, *keys: str) -> None:
    """UsageError unless these keys of [data] are 1 or more."""
    for key in keys:
        if getattr(recipe.data, key) < 1:
            raise UsageError(f"data.{key} is {getattr(recipe.data, key)}; expected 1 or more")
