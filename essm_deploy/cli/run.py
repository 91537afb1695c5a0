"""`essm-deploy run`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from essm_deploy import runtime
from essm_deploy.cli.options import EXISTING, FORMAT, THREADS
from essm_deploy.cli.run_clip import ClipOptions, run_clip
from essm_deploy.cli.run_text import TextOptions, run_text

_CLIP_ONLY = ("top", "stream", "hop")
_TEXT_ONLY = ("max_new_bytes", "seed", "temperature", "top_k", "top_p", "stop")


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number", ctx, param)
    return value


@click.command()
@click.argument("bundle", type=EXISTING)
@click.argument("clip", required=False)
@click.option("--budget", type=click.IntRange(1), default=None, help="Use the bundle's engine of this budget.")
@click.option("--top", type=click.IntRange(1), default=None, help="Print this many labels only.")
@click.option("--stream", is_flag=True, help="Answer while the clip goes on, with the bundle's stream engines.")
@click.option("--hop", type=click.IntRange(1), default=None, help="Frames between two answers; default: the shortest chunk.")
@click.option("--prompt", default=None, help="Continue this text; it may be empty.")
@click.option("--max-new-bytes", type=click.IntRange(1), default=None, help="Generate at most so many bytes; default: 256.")
@click.option("--seed", type=click.IntRange(0), default=None, help="The same seed gives the same text; default: 0.")
@click.option(
    "--temperature", type=click.FloatRange(0), callback=_finite, default=None, help="0 takes the likeliest byte; default: 1."
)
@click.option("--top-k", type=click.IntRange(1), default=None, help="Sample among so many of the likeliest bytes.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    callback=_finite,
    default=None,
    help="Sample among the likeliest bytes that together have this probability.",
)
@click.option("--stop", multiple=True, help="End before this text comes; may be given several times.")
@THREADS
@FORMAT
@click.pass_context
def run(
    ctx: click.Context,
    /,
    bundle: Path,
    clip: str | None,
    budget: int | None,
    prompt: str | None,
    threads: int | None,
    output_format: str,
    **options: Any,
) -> None:
    """Label CLIP (wav, flac, npy, or - for standard input) with BUNDLE, best label first; or continue a text.

    A text is generated with --prompt, byte by byte, from a bundle of a language model; how it went is the last line on
    standard error.
    """
    if (clip is None) == (prompt is None):
        raise click.UsageError("give a CLIP to label, or --prompt to continue a text", ctx)
    _refuse(ctx, options, _TEXT_ONLY if prompt is None else _CLIP_ONLY, "CLIP" if prompt is None else "--prompt")
    model = runtime.load(bundle, budget=budget, threads=threads)
    if prompt is not None:
        run_text(model, prompt, TextOptions(**{name: options[name] for name in _TEXT_ONLY}), output_format)
    elif clip is not None:
        run_clip(model, clip, ClipOptions(**{name: options[name] for name in _CLIP_ONLY}), output_format)


def _refuse(ctx: click.Context, options: dict[str, Any], names: tuple[str, ...], given: str) -> None:
    for name in names:
        if options[name] is not None and options[name] is not False and options[name] != ():
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with {given}", ctx)
    if options["hop"] is not None and not options["stream"]:
        raise click.UsageError("--hop goes with --stream", ctx)
