"""Labelling a clip, at once or while it goes on."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from essm_deploy.cli.output import print_json, print_table
from essm_deploy.errors import InputError
from essm_deploy.frontend import LogMel
from essm_deploy.frontend.audio import read_audio
from essm_deploy.runtime import Model

_MAX_STDIN = 64 * 2**20


@dataclass(frozen=True)
class ClipOptions:
    """`top`: labels to print. `stream`: an answer every `hop` frames."""

    top: int | None
    stream: bool
    hop: int | None


def run_clip(model: Model, clip: str, options: ClipOptions, output_format: str) -> None:
    """Print the labels of `clip`. InputError if the bundle or the clip is of another kind."""
    frontend = model.frontend
    if frontend is None:
        raise InputError(f"{model.root}: the model has no audio front end, so it cannot label a clip: text takes --prompt")
    waveform = read_audio(_source(clip), frontend.sample_rate)
    document = {"schema_version": "1.0", "clip": clip, "budget": model.engine.budget}
    if options.stream:
        _stream(model, frontend, waveform, options, document, output_format)
        return
    labels = model.classify(waveform)[: options.top]
    if output_format == "json":
        print_json({**document, "engine": model.engine.id, "labels": labels})
    else:
        print_table(["label", "score"], [(entry["label"], f"{entry['score']:.3f}") for entry in labels])


def _stream(
    model: Model, frontend: LogMel, waveform: Any, options: ClipOptions, document: dict[str, Any], output_format: str
) -> None:
    """A line for every hop as it comes, or one document."""
    answers = []
    with model.stream() as stream:
        hop = options.hop or stream.chunks[-1]
        for features in frames_by_hop(frontend, waveform, hop):
            stream.push(features)
            labels, seconds = stream.scores()[0][: options.top], stream.position * frontend.hop / frontend.sample_rate
            answers.append({"frame": stream.position, "seconds": round(seconds, 6), "labels": labels})
            if output_format == "text":
                shown = "  ".join(f"{entry['label']} {entry['score']:.3f}" for entry in labels[: options.top or 1])
                click.echo(f"{seconds:7.2f} s  {shown}")
    if output_format == "json":
        print_json({**document, "hop_frames": hop, "answers": answers})


def frames_by_hop(frontend: LogMel, waveform: Any, hop: int) -> Iterator[Any]:
    """float32 [hop, n_mels], and what remains, of a clip of any length: a frame depends on its own samples only."""
    samples = (hop - 1) * frontend.hop + frontend.window
    short = replace(frontend, frames=hop, clip_samples=samples)
    for start in range(0, waveform.size, hop * frontend.hop):
        features, length = short(waveform[start : start + samples])
        yield features[:length]


def _source(clip: str) -> Path | BinaryIO:
    if clip != "-":
        return Path(clip)
    data = sys.stdin.buffer.read(_MAX_STDIN + 1)
    if len(data) > _MAX_STDIN:
        raise InputError(f"standard input: more than {_MAX_STDIN} bytes; expected one clip")
    return io.BytesIO(data)
