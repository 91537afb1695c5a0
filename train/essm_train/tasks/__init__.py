"""What a model is trained on. A task gives the trainer its batches, its loss and its metric; the trainer knows no data.

A task is one module, named in essm_train.registry, with these names at its top level:

    Recipe                          the dataclass of its recipe: CommonSettings and the task's own section, usually [data]
    build(recipe, data, device)     -> Task; `data` is the path that --data names. Bad data is an InputError here, in one line
    check(recipe)                   raises UsageError where values do not fit together
    smoke(recipe)                   -> the same recipe cut to some seconds: two epochs of two steps, a model of width 16 or so
    smoke_data(folder)              -> a path for --data with a few made-up samples in the public data set's own layout
    card(task, result)              optional: the whole model card; without it essm_train.card writes a general one

and one documented recipe in configs/<name>.toml. Variants are configs/<name>-<variant>.toml and hold only what they change.

Kinds of models (ModelConfig):

    tokens, next token              vocab_size                       tied head   [R, T] -> [R, T, vocab_size]   bytes, DNA, MQAR
    tokens, a class                 vocab_size, num_labels           mean, head  [R, T] -> [R, num_labels]       ListOps, Text
    vectors, a class                input_size, num_labels           mean, head  [R, T, F] -> [R, num_labels]   keywords, images
    vectors, values per position    input_size, num_labels, pooled=False         [R, T, F] -> [R, T, num_labels] policies

Two towers (Retrieval) are one model that sees both documents: rows 2i and 2i + 1 of `inputs` are the pair of target i, the
head's outputs are embeddings, and the task's loss compares them, with a dot product: logit = a·b / sqrt(num_labels). What is
exported is the tower, and an app needs nothing else.

A front is a module of the task's own before the layers, where one Linear cannot do it (a decision transformer's embeddings):
`Task.front()` makes it, `model.front` is it, it maps what `Batch.inputs` holds to vectors [R, T, hidden_size], and its
model_config says input_size = hidden_size. The checkpoint then takes these vectors (`input` is the identity) and the front's
tensors lie beside the model in front.safetensors, for the app to apply in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from essm_train.model import ModelConfig
from essm_train.share import ALL, Share


@dataclass(frozen=True)
class Whole:
    """What a rank that builds some rows of a step's batch knows of all: how many there are, and the sum of their weights."""

    rows: int
    weight: int | None = None  # None: all rows weigh the same


@dataclass(frozen=True)
class Batch:
    """inputs [R, T] or [R, T, input_size] (or what a front takes); lengths [R] valid steps (None: all); targets as the task's
    loss takes them, with B rows. R = B, or 2 B for pairs.

    weights [B]: how many targets of each row count in the loss (None: as many in each), so that the losses of a batch's parts
    add up to the mean over all of it. whole: the batch of which these rows are a share (None: they are all of it).
    """

    inputs: Tensor
    lengths: Tensor | None
    targets: Tensor
    weights: Tensor | None = None
    whole: Whole | None = None

    @property
    def rows(self) -> int:
        """Of the whole batch."""
        return len(self.targets) if self.whole is None else self.whole.rows

    @property
    def weight(self) -> float:
        """How many targets the loss of these rows is a mean of, up to a factor that is the same for all shares of a batch."""
        return float(len(self.targets)) if self.weights is None else float(self.weights.sum())

    @property
    def whole_weight(self) -> float:
        """The same of the whole batch."""
        if self.whole is None:
            return self.weight
        return float(self.whole.rows if self.whole.weight is None else self.whole.weight)

    @property
    def tokens(self) -> int:
        """Of the whole batch, padding and both of a pair included."""
        return self.rows * self.inputs.shape[0] // max(1, len(self.targets)) * self.inputs.shape[1]


class Task(Protocol):
    """The seam between the trainer and a data set."""

    name: str
    metric: str  # of `evaluate`: accuracy, bits_per_byte, bits_per_base, normalized_return
    direction: str  # "maximize" or "minimize"
    model_config: ModelConfig
    steps_per_epoch: int

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """The step-th training batch: a function of the seed and the step alone, so that a resumed run repeats it.

        The whole step has about recipe.train.batch_size targets. Of these the rows `share.rows(count)` are built, on the task's
        device and exactly as they are in the whole batch: what is drawn is drawn for all rows, and sequences are padded to the
        longest of all. Batch.whole says what they are a share of.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar to minimise: a mean over the targets that count (see Batch.weights), in float32.

        A task whose outputs are numbers and no logits has an attribute `continuous = True`, for distillation.
        """

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """The metric over "val" or "test" with `budget` channels. Calls model(inputs, lengths, budget) and nothing else of it,
        in evaluation mode, which it leaves as it was: `model` may be a compiled engine behind an nn.Module."""

    def samples(self, split: str) -> int:
        """How many samples `evaluate` judges."""

    def config_fields(self) -> dict[str, Any]:
        """What the checkpoint's config says about the task: `task`, and `id2label`, `num_outputs` or `frontend` with it.

        task is audio-classification or sequence-classification (pooled, with id2label), text-generation (tied head) or
        sequence-regression (pooled=False, with num_outputs = num_labels).
        """


@runtime_checkable
class Classifier(Protocol):
    """A task whose evaluation is of classes: essm-train evaluate then reports the calibration error as well."""

    def scores(self, model: nn.Module, split: str, budget: int) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and labels [n] of the split, on the CPU; `evaluate` is the share whose largest is right."""


@runtime_checkable
class Fronted(Protocol):
    """A task whose model begins with a module of its own (see above)."""

    def front(self) -> nn.Module:
        """A freshly initialised front; torch's seed was set before."""


@runtime_checkable
class Described(Protocol):
    """A task that can say what it was trained on, for the model card."""

    def source(self) -> str:
        """Data set, licence, sizes of the splits, and what keeps them apart: a paragraph."""


@dataclass(frozen=True)
class Result:
    """What a card is written from. quality and validation: documents of evaluate.measure_quality on "test" and "val"."""

    recipe: Any
    quality: Mapping[str, Any]
    validation: Mapping[str, Any]
    parameters: int  # at k_max
    command: str
    source: str | None = None  # --source, in the user's words
    hours: float | None = None
    data: Path | None = None
    init: str | None = None  # the name of the checkpoint whose weights it began with
