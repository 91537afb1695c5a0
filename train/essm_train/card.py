"""The model card of a task that has none of its own: what the checkpoint is, how it was made, what was measured."""

from __future__ import annotations

import textwrap

from essm_train.tasks import Described, Result, Task

_CARD = """---
license: apache-2.0
library_name: essm-deploy
tags: [state-space-model, elastic]
metrics: [{metric}]
---

# Elastic model of the task `{name}`

An ES-SSM (arXiv 2601.22488) of {layers} layers, width {hidden} and {k_max} spectral channels over up to {seq_len} steps, with
{parameters:.2f} million parameters. Any budget K from 1 to {k_max} is a prefix of its channels; it was trained {trained}.

## Data

{source}

## Recipe

    {command}

Seed {seed}, {epochs} epochs of {steps} steps of {batch}, gate `{gate}`. {init}It took {hours} of wall clock.
Every other setting is explained in the recipe of the task in train/essm_train/configs.

## Measured

{metric}, {better} is better, on the {samples} samples of the {split} split, and on the validation split, which was looked at in
training:

| K | {split} | validation |
|---:|---:|---:|
{rows}

## Limits of use

A demonstration and a test object: it knows what the data above taught it, and was judged on that data's own held-out part.
"""


def init_line(init: str | None) -> str:
    """What a run began with, where that was not chance."""
    return "" if init is None else f"It began with the weights of `{init}`. "


def general_card(task: Task, result: Result) -> str:
    """Fill in the card."""
    m, b, t, quality = result.recipe.model, result.recipe.budgets, result.recipe.train, result.quality
    source = result.source or (task.source() if isinstance(task, Described) else "The author of this checkpoint did not say.")
    trained = f"for K = {', '.join(map(str, b.trained))}" if b.sampled else "at the full budget alone, without budget dropout"
    return _CARD.format(
        name=task.name, metric=task.metric, layers=m.num_hidden_layers, hidden=m.hidden_size, k_max=m.k_max,
        seq_len=task.model_config.seq_len, parameters=result.parameters / 1e6, trained=trained,
        source=textwrap.fill(source, 124), command=result.command, seed=t.seed, epochs=t.epochs, steps=task.steps_per_epoch,
        batch=t.batch_size, gate=m.gate, init=init_line(result.init), hours=duration(result.hours or 0.0),
        better="higher" if task.direction == "maximize" else "lower", samples=quality["samples"], split=quality["split"],
        rows="\n".join(f"| {k} | {v:.4f} | {result.validation['budgets'][k]:.4f} |" for k, v in quality["budgets"].items()),
    )  # fmt: skip


def duration(hours: float) -> str:
    """In hours, minutes or seconds."""
    if hours >= 1.0:
        return f"{hours:.1f} hours"
    return f"{60 * hours:.0f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.0f} seconds"
