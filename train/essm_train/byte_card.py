"""The model card of a byte-level language model, with the Markov chain that it has to beat."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from essm_train.card import init_line
from essm_train.tasks import Result
from essm_train.tasks.markov import add_one_bits_per_byte, markov_bits_per_byte
from essm_train.tasks.text import Text

if TYPE_CHECKING:
    from essm_train.settings import TextSettings
    from essm_train.tasks.bytes import Bytes

ORDER = 3  # of the baseline

_CARD = """---
license: apache-2.0
library_name: essm-deploy
pipeline_tag: text-generation
tags: [state-space-model, elastic, byte-level]
metrics: [bits_per_byte]
---

# Elastic byte-level language model

An ES-SSM (arXiv 2601.22488) of {layers} layers, width {hidden} and {k_max} spectral channels, with exact Hankel filters of
length {seq_len}, which predicts the next byte of a text. Any budget K from 1 to {k_max} is a prefix of its channels; it was
trained for {budgets}. Token ids are byte + 2; 0 is PAD, 1 is BOS, and a sequence starts with BOS.

## Data

{source}

The file has {size} bytes, sha256 {sha256}.
Its first {train} bytes were trained on, the next {val} are the validation split and the last {test} the test split:
contiguous parts, so that no byte is in two of them. The text is not part of this checkpoint. The weights are under Apache-2.0.

## Recipe

    {command}

Seed {seed}, {steps} steps of {tokens} bytes ({passes:.1f} passes over the training bytes), {sequences}.
{init}{hours}Every other setting is in the recipe's files in train/essm_train/configs.

## Measured

Bits per byte, lower is better. Test: all {samples} bytes of the split, in {rows} sequences of {seq_len} that each start anew
from BOS; read once, for this table. Validation: the split's first {val_bytes} bytes, which is what was looked at in training.

| K | test | test, against the order-{order} chain | validation |
|---:|---:|---:|---:|
{table}

{shape}The chains that count what follows the last bytes in the same training bytes, on the same test bytes read as one stream:

| baseline | test | validation |
|---|---:|---:|
{baselines}

## Limits of use

A demonstration and a test object of {parameters:.1f} million parameters: it continues text in the manner of its one source and
knows nothing else. Other languages, styles or encodings are far from what it was trained on. It has no end-of-text token: stop
at a byte of your choice. Past {seq_len} bytes each filter forgets what left its window (`overflow`: `window`). Text that it
generates may look like a quotation and not be one.
"""


UNNAMED = "A text that the author of this checkpoint did not name."


def write_card(task: Bytes, result: Result) -> str:
    """Fill in the card."""
    settings, text, quality, validation = task.settings, task.text, result.quality, result.validation
    assert isinstance(text, Text)  # a streamed one gets the general card
    m, train, t = settings.model, settings.train, settings.text
    steps, tokens = train.epochs * t.interval, train.batch_size * t.seq_len
    chain = markov_bits_per_byte(text.train, text.test, ORDER)
    return _CARD.format(
        layers=m.num_hidden_layers, hidden=m.hidden_size, k_max=m.k_max, seq_len=t.seq_len,
        budgets=", ".join(map(str, settings.budgets.trained)),
        source=textwrap.fill(result.source or UNNAMED, 124), sha256=sha256(text),
        size=sum(len(text[split]) for split in ("train", "val", "test")),
        train=len(text.train), val=len(text.val), test=len(text.test), command=result.command, seed=train.seed,
        steps=steps, tokens=tokens, passes=steps * tokens / len(text.train), sequences=sequences_line(t),
        init=init_line(result.init), hours=hours_line(result.hours),
        samples=quality["samples"], rows=-(-quality["samples"] // t.seq_len),
        val_bytes=validation["samples"], order=ORDER, table="\n".join(_rows(quality, validation, chain)),
        shape=shape_line(quality["budgets"]),
        baselines="\n".join(_baselines(text, validation["samples"])), parameters=result.parameters / 1e6,
    )  # fmt: skip


def sha256(text: Text) -> str:
    """Of the whole file."""
    digest = hashlib.sha256()
    for split in ("train", "val", "test"):
        digest.update(text[split].tobytes())
    return digest.hexdigest()


def sequences_line(text: TextSettings) -> str:
    """How long the sequences were."""
    if text.short_share == 0.0:
        return f"in sequences of {text.seq_len} bytes"
    share = f"for the first {text.short_share:.0%} of the steps and of {text.seq_len} after that"
    return f"in sequences of {text.short_len} bytes\n{share}"


def hours_line(hours: float | None) -> str:
    return "" if hours is None else f"It took {hours:.1f} hours of wall clock. "


def shape_line(budgets: Mapping[str, float]) -> str:
    """What the table shows where the largest budget is not the best one."""
    best, largest = min(budgets, key=lambda k: budgets[k]), max(budgets, key=int)
    if best == largest:
        return ""
    more = budgets[largest] - budgets[best]
    line = f"The best budget is K = {best}; with all {largest} channels it takes {more:.3f} bits more, so larger is no better."
    return line + "\n\n"


def _rows(quality: Mapping[str, Any], validation: Mapping[str, Any], chain: float) -> list[str]:
    return [
        f"| {k} | {bits:.3f} | {bits - chain:+.3f} | {validation['budgets'][k]:.3f} |" for k, bits in quality["budgets"].items()
    ]


def _baselines(text: Text, val_bytes: int) -> list[str]:
    """Interpolated chains of three orders, of which the card names one, and the plain add-one one."""
    splits = (text.test, text.val[:val_bytes])
    rows = []
    for order in (ORDER - 1, ORDER, ORDER + 1, ORDER + 2):
        values = [markov_bits_per_byte(text.train, split, order) for split in splits]
        rows.append(f"| order {order}, interpolated (Witten-Bell) | {values[0]:.3f} | {values[1]:.3f} |")
    values = [add_one_bits_per_byte(text.train, split, ORDER) for split in splits]
    return [*rows, f"| order {ORDER}, add-one | {values[0]:.3f} | {values[1]:.3f} |"]
