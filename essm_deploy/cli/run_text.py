"""Continuing a text."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from essm_deploy.cli.output import print_json
from essm_deploy.errors import InputError
from essm_deploy.runtime import Generation, Model, Statistics, generate

_DEFAULT_BYTES = 256


@dataclass(frozen=True)
class TextOptions:
    """As on the command line; None where it says nothing."""

    max_new_bytes: int | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    stop: tuple[str, ...]


def run_text(model: Model, prompt: str, options: TextOptions, output_format: str) -> None:
    """Print what follows `prompt`, as it comes, or one document. InputError if the bundle is no language model's."""
    given, most, seed = os.fsencode(prompt), options.max_new_bytes or _DEFAULT_BYTES, options.seed or 0
    if model.frontend is not None or model.labels:
        raise InputError(f"{model.root}: the model labels clips, so it cannot continue a text; give a CLIP instead of --prompt")
    with model.stream(max_length=1 + len(given) + most) as stream:
        generation = generate(
            stream,
            given,
            most,
            temperature=1.0 if options.temperature is None else options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=seed,
            stop=[os.fsencode(text) for text in options.stop],
        )
        if output_format == "json":
            text = "".join(decoded(generation))
            print_json(_document(given, text, stream.budget, seed, generation.statistics))
            return
        for piece in decoded(generation):
            click.echo(piece, nl=False)
        click.echo()
    click.echo(_summary(generation.statistics, stream.budget), err=True)


def decoded(generation: Generation) -> Iterator[str]:
    """Text as soon as its characters are complete; U+FFFD for bytes that are none."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in generation:
        if text := decoder.decode(piece):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _document(prompt: bytes, text: str, budget: str, seed: int, statistics: Statistics) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "prompt": prompt.decode("utf-8", errors="replace"),
        "text": text,
        "budget": budget,
        "prompt_bytes": statistics.prompt_bytes,
        "new_bytes": statistics.new_bytes,
        "bytes_per_s": {"prefill": statistics.prefill_rate, "decode": statistics.decode_rate},
        "bits_per_byte": {"prompt": statistics.prompt_bits_per_byte, "generated": statistics.generated_bits_per_byte},
        "stopped": statistics.stopped,
        "seed": seed,
    }


def _summary(statistics: Statistics, budget: str) -> str:
    parts = []
    for name, count, rate, bits in (
        ("prompt", statistics.prompt_bytes, statistics.prefill_rate, statistics.prompt_bits_per_byte),
        ("new", statistics.new_bytes, statistics.decode_rate, statistics.generated_bits_per_byte),
    ):
        detail = f" at {rate:,.0f} bytes/s, {bits:.2f} bits/byte" if rate is not None and bits is not None else ""
        parts.append(f"{name} {count} bytes{detail}")
    return f"{budget}: {'; '.join(parts)}; stopped by {statistics.stopped}"
