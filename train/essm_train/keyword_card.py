"""The model card: what a checkpoint is, how it was made, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from essm_train.evaluate import standard_error
from essm_train.tasks import Result
from essm_train.tasks.speech_commands import SPLITS, WORDS

if TYPE_CHECKING:
    from essm_train.tasks.keywords import Keywords

_CARD = """---
license: apache-2.0
language: en
library_name: essm-deploy
pipeline_tag: audio-classification
tags: [state-space-model, elastic, keyword-spotting]
datasets: [google/speech_commands]
metrics: [accuracy]
---

# Elastic keyword spotter

An ES-SSM (arXiv 2601.22488) of {layers} layers, width {hidden} and {k_max} spectral channels that names which of ten words a
one-second clip holds: {words}.
Any budget K from 1 to {k_max} is a prefix of its channels; it was trained for K = {budgets}.

## Data

Speech Commands v0.02, Google (Pete Warden), CC BY 4.0: the clips of the ten words, {train} for training, {val} for validation,
{test} for the test below. No speaker is in two of the splits. The weights are under Apache-2.0.

## Recipe

    {command}

Seed {seed}, {epochs} epochs of {steps} steps, batch {batch}; every other setting is in train/essm_train/configs/keywords.toml.
Hyper-parameters were chosen on the validation split; the test split was read once, for the table.

## Measured

Accuracy on the {samples} clips of the {split} split, with its standard error, and on the validation split:

| K | {split} accuracy | standard error | validation accuracy |
|---:|---:|---:|---:|
{rows}

Differences between budgets that are smaller than about two standard errors say nothing.

## Limits of use

Clips of at most one second at 16 kHz, mono, with one of the ten words in it: there is no class for silence or for other
words, so any sound gets one of the ten labels. English words, recorded by volunteers on their own laptops and phones. Trained
on {train} clips: a demonstration and a test object, not a product's wake word.
"""


def write_card(task: Keywords, result: Result) -> str:
    """Fill in the card of a keyword checkpoint."""
    m, train, quality = result.recipe.model, result.recipe.train, result.quality
    return _CARD.format(
        layers=m.num_hidden_layers, hidden=m.hidden_size, k_max=m.k_max, words=", ".join(WORDS),
        budgets=", ".join(map(str, result.recipe.budgets.trained)), command=result.command, seed=train.seed,
        epochs=train.epochs, batch=train.batch_size, steps=task.steps_per_epoch, samples=quality["samples"],
        split=quality["split"], rows="\n".join(_rows(quality, result.validation["budgets"])),
        **{split: task.samples(split) for split in SPLITS},
    )  # fmt: skip


def _rows(quality: Mapping[str, Any], validation: Mapping[str, float]) -> list[str]:
    return [
        f"| {k} | {100 * share:.1f} % | {100 * standard_error(share, quality['samples']):.1f} | {100 * validation[k]:.1f} % |"
        for k, share in quality["budgets"].items()
    ]
