"""`essm-deploy run`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO

import click

from essm_deploy import runtime
from essm_deploy.cli.options import EXISTING, FORMAT, THREADS
from essm_deploy.cli.output import print_json, print_table
from essm_deploy.errors import InputError
from essm_deploy.frontend.audio import read_audio

_MAX_STDIN = 64 * 2**20


@click.command()
@click.argument("bundle", type=EXISTING)
@click.argument("clip")
@click.option("--budget", type=click.IntRange(1), default=None, help="Use the bundle's engine of this budget.")
@click.option("--top", type=click.IntRange(1), default=None, help="Print this many labels only.")
@THREADS
@FORMAT
def run(bundle: Path, clip: str, budget: int | None, top: int | None, threads: int | None, output_format: str) -> None:
    """Label CLIP (wav, flac, npy, or - for standard input) with BUNDLE, best label first."""
    model = runtime.load(bundle, budget=budget, threads=threads)
    if model.frontend is None:
        raise InputError(f"{bundle}: the model has no audio front end, so it cannot label a clip")
    labels = model.classify(read_audio(_source(clip), model.frontend.sample_rate))[:top]
    if output_format == "json":
        document = {"schema_version": "1.0", "clip": clip, "engine": model.engine.id, "budget": model.engine.budget}
        print_json({**document, "labels": labels})
    else:
        print_table(["label", "score"], [(entry["label"], f"{entry['score']:.3f}") for entry in labels])


def _source(clip: str) -> Path | BinaryIO:
    if clip != "-":
        return Path(clip)
    data = sys.stdin.buffer.read(_MAX_STDIN + 1)
    if len(data) > _MAX_STDIN:
        raise InputError(f"standard input: more than {_MAX_STDIN} bytes; expected one clip")
    return io.BytesIO(data)
