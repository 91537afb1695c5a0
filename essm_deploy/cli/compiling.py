"""What `build` and `profile` share: their options, and how a result is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from essm_deploy.cli.options import BUDGETS, LATENCY, SIZE, THREADS
from essm_deploy.cli.output import print_pairs, print_table
from essm_deploy.resources import data_folder
from essm_deploy.units import format_bytes, format_ms

if TYPE_CHECKING:
    from essm_deploy.compile import Request

_EXIT_CODES = {"ok": 0, "estimated": 0, "nothing_fits": 1, "inconclusive": 5}


def compiling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Target, limits, candidates and measurement settings."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = [
    click.option("--target", default="cpu", show_default=True, help="A name from `essm-deploy targets`, or a .toml file."),
    click.option(
        "--max-latency", type=LATENCY, default=None, help="Limit of one call, like 10ms: its p95, with 95% confidence."
    ),
    click.option(
        "--max-memory", type=SIZE, default=None, help="Limit of the whole process, interpreter included, like 200MiB."
    ),
    click.option("--budgets", type=BUDGETS, default="trained", help="Candidates: 4,8,12, or all; default: those of training."),
    click.option("--all-K", "all_k", is_flag=True, help="Measure every candidate instead of searching."),
    click.option("--statistic", type=click.Choice(["p50", "p90", "p95", "p99"]), default="p95", show_default=True),
    click.option(
        "--kind",
        type=click.Choice(["sequence", "stream"]),
        default=None,
        help="The call that the limits bound; default: a step of the stream for text generation, else the sequence.",
    ),
    click.option(
        "--backend",
        type=click.Choice(["onnxruntime", "tensorrt", "tensorrt-rtx"]),
        default=None,
        help="Default: the first of the target's that is here.",
    ),
    click.option(
        "--provider",
        type=click.Choice(["cpu", "cuda"]),
        default=None,
        help="Of ONNX Runtime: nothing may run on another one, and TF32 is off.",
    ),
    click.option("--dynamic-batch", is_flag=True, help="Engines that take any batch; measured at batch 1."),
    click.option("--lowering", default=None, help="How to spell the convolution; default: chosen by length."),
    click.option(
        "--precision",
        type=click.Choice(["fp32", "fp16", "bf16"]),
        default="fp32",
        show_default=True,
        help="Of the matrix products outside the spectral filters, which are always fp32.",
    ),
    click.option(
        "--precision-fallback",
        type=click.Choice(["fp32", "bf16"]),
        default=None,
        help="What to build where the model does not bear --precision; default: fail and say which node.",
    ),
    THREADS,
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
]


def make_request(
    checkpoint: Path | None,
    *,
    target: str,
    max_latency: float | None,
    max_memory: int | None,
    budgets: Any,
    all_k: bool,
    statistic: str,
    kind: Any,
    dynamic_batch: bool,
    lowering: str | None,
    backend: str | None,
    provider: str | None,
    precision: Any,
    precision_fallback: Any,
    threads: int | None,
    min_quality: float | None = None,
    min_retention: float | None = None,
    keep: tuple[int, ...] = (),
) -> Request:
    """The request of a command line; without a checkpoint, the shipped keyword spotter."""
    from essm_deploy.compile import Request
    from essm_deploy.profiling.measure import Settings
    from essm_deploy.profiling.verdict import Limits

    return Request(
        checkpoint=checkpoint or data_folder("checkpoints") / "keywords",
        target=target,
        limits=Limits(max_latency, max_memory, min_quality, min_retention),
        budgets=budgets,
        exhaustive=all_k,
        keep=keep,
        kind=kind,
        dynamic_batch=dynamic_batch,
        lowering=lowering,
        backend=backend,
        provider=provider,
        precision=precision,
        precision_fallback=precision_fallback,
        settings=Settings(statistic=statistic, threads=threads),
    )


def exit_code(document: dict[str, Any]) -> int:
    """The exit code that belongs to a document's status."""
    return _EXIT_CODES[document["status"]]


def print_choice(document: dict[str, Any]) -> None:
    """The answer in a few lines, each figure with its basis."""
    if document["budget"] is None:
        click.echo(f"{_HEADLINES[document['status']]} on {document['target']}: {document['message']}")
        return
    if document["status"] == "estimated":
        print_estimated(document)
        return
    headline = _HEADLINES[document["status"] if document["certain"] else "uncertain"]
    click.echo(f"K={document['budget']} on {document['target']}: {headline}")
    print_pairs(_answer_lines(document))
    if document["status"] == "inconclusive":
        click.echo(f"inconclusive: {document['message']}")


_HEADLINES = {
    "ok": "the largest budget that meets every limit",
    "inconclusive": "the largest budget that surely meets every limit",
    "uncertain": "the smallest budget, which may or may not meet every limit",
    "nothing_fits": "nothing fits",
}


def _answer_lines(document: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("latency", _latency(document["latency_ms"], document["limits"]["max_latency_ms"])),
        ("memory", _memory(document["memory"], document["limits"]["max_memory_bytes"])),
        ("quality", _quality(document["quality"])),
        ("parity", f"{document['verification']['max_rel_error']:.1e} from the float64 reference"),
    ]
    return [*lines, ("bundle", document["bundle"])] if document.get("bundle") else lines


def _latency(latency: dict[str, Any], limit: float | None) -> str:
    name = latency["statistic"]
    bound = f"at most {format_ms(latency['upper'])} with {latency['confidence']:.0%} confidence"
    basis = f"{latency['basis']}, {latency['samples']} calls, limit {_limit(limit, format_ms)}"
    return f"{name} {format_ms(latency[name])}, {bound} ({basis})"


def _memory(memory: dict[str, Any], limit: int | None) -> str:
    share = f"peak {format_bytes(memory['peak_bytes'])}, {format_bytes(memory['baseline_bytes'])} of it the interpreter"
    return f"{share} ({memory['basis']}, limit {_limit(limit, format_bytes)})"


def print_estimated(document: dict[str, Any]) -> None:
    """The answer where the device is not here: every figure is an estimate, and the engine has not run."""
    latency, memory, limits = document["latency_ms"], document["memory"], document["limits"]
    verification, bytes_limit = document["verification"], _limit(limits["max_memory_bytes"], format_bytes)
    click.echo(f"K={document['budget']} on {document['target']}: the largest budget that meets every limit by estimate")
    click.echo(document["note"])
    print_pairs(
        [
            ("latency", f"{format_ms(latency['estimate'])} (estimated, limit {_limit(limits['max_latency_ms'], format_ms)})"),
            ("memory", f"{format_bytes(memory['device_bytes'])} of the GPU's, CUDA apart (estimated, limit {bytes_limit})"),
            ("factors", document["efficiency"]["source"]),
            ("quality", _quality(document["quality"])),
            ("parity", f"{verification['max_rel_error']:.1e} from the float64 reference, its graph on this machine"),
            ("engine", f"{verification['on_device']} on the device"),
            ("bundle", document["bundle"]),
        ]
    )


def _limit(value: Any, shown: Callable[[Any], str]) -> str:
    return "none" if value is None else shown(value)


def _quality(quality: dict[str, Any] | None) -> str:
    if quality is None:
        return "not measured at this budget"
    retention = "" if quality["retention"] is None else f", {quality['retention']:.1%} of the full budget"
    return f"{quality['metric']} {quality['value']:.4g}{retention} (measured in training)"


def print_candidates(document: dict[str, Any]) -> None:
    """One row a candidate."""
    header = ("budget", "p50", "p95", "p95 at most", "p99", "peak memory", "quality", "verdict")
    print_table(header, [_row(c) for c in document["candidates"]])


def _row(candidate: dict[str, Any]) -> list[str]:
    latency, memory, quality = candidate["latency_ms"], candidate["memory"], candidate["quality"]
    times = [format_ms(latency[key]) if latency else "-" for key in ("p50", "p95", "upper", "p99")]
    peak = format_bytes(memory["peak_bytes"]) if memory else "-"
    return [f"K={candidate['budget']}", *times, peak, f"{quality['value']:.4g}" if quality else "-", candidate["verdict"]]
