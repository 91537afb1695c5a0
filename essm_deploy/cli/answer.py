"""The answer of `build` and `profile` in words: each figure with its basis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from essm_deploy.cli.output import print_pairs, print_table
from essm_deploy.units import format_bytes, format_ms


def print_answers(document: dict[str, Any]) -> None:
    """The answer, or those of several runs."""
    for run in document.get("runs", [document]):
        print_choice(run)


def print_choice(document: dict[str, Any]) -> None:
    """One answer in a few lines."""
    where = _where(document)
    if document["budget"] is None:
        click.echo(f"{_HEADLINES[document['status']]} on {where}: {document['message']}")
    elif document["status"] == "estimated":
        click.echo(f"K={document['budget']} on {where}: the largest budget that meets every limit by estimate")
        print_estimated(document)
    else:
        click.echo(f"K={document['budget']} on {where}: {_HEADLINES[_headline(document)]}")
        print_pairs(_answer_lines(document))
    if document["budget"] is not None and document["status"] == "inconclusive":
        click.echo(f"inconclusive: {document['message']}")


_HEADLINES = {
    "ok": "the largest budget that meets every limit",
    "inconclusive": "the largest budget that surely meets every limit",
    "uncertain": "the smallest budget, which may or may not meet every limit",
    "contradicted": "it met every limit, but not when it was built anew",
    "nothing_fits": "nothing fits",
    "failed": "failed",
}


def _where(document: dict[str, Any]) -> str:
    requirement = document.get("requirement")
    return f"{document['target']} for {requirement}" if requirement else str(document["target"])


def _headline(document: dict[str, Any]) -> str:
    if document["certain"]:
        return str(document["status"])
    return "contradicted" if document.get("spread") else "uncertain"


def _answer_lines(document: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("latency", _latency(document["latency_ms"], document["limits"]["max_latency_ms"])),
        *_further_latencies(document),
        ("memory", _memory(document["memory"], document["limits"]["max_memory_bytes"])),
        ("quality", _quality(document["quality"])),
        *_better_below(document.get("better_quality_below")),
        *_precision(document),
        ("parity", f"{document['verification']['max_rel_error']:.1e} from the float64 reference"),
    ]
    return [*lines, ("bundle", document["bundle"])] if document.get("bundle") else lines


def _further_latencies(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Of the same engine: called back to back where the limit bounds paced calls, from a cold start, and built anew."""
    lines, back_to_back, spread = [], document.get("back_to_back_ms"), document.get("spread")
    if back_to_back:
        name, calls = back_to_back["statistic"], back_to_back["samples"]
        lines.append(("unpaced", f"{name} {format_ms(back_to_back[name])} back to back (measured, {calls} calls)"))
    if document.get("cold_start_ms"):
        total = format_ms(document["cold_start_ms"]["total"])
        lines.append(("cold start", f"{total} from opening the engine to its first result (measured once)"))
    if spread:
        shown = ", ".join(format_ms(value) for value in spread["latency_ms"])
        apart = f"{spread['relative_range']:.1%} apart{_REBUILDS[spread['rebuilds']]}"
        lines.append(("builds", f"{spread['statistic']} {shown}: {apart}"))
    return lines


_REBUILDS = {
    "fits": "",
    "unclear": "; built anew, it leaves the limit open",
    "exceeds": "; built anew, it exceeds the limit",
}


def _better_below(better: dict[str, Any] | None) -> list[tuple[str, str]]:
    if better is None:
        return []
    quality = better["quality"]
    return [("", f"K={better['budget']}, a smaller one, has the better {quality['metric']} {quality['value']:.4g}")]


def _precision(document: dict[str, Any]) -> list[tuple[str, str]]:
    fell_back = document.get("fell_back")
    lines = [] if document["precision"] == "fp32" and not fell_back else [("precision", document["precision"])]
    return [*lines, ("fell back", f"from {fell_back['from']}: {fell_back['reason']}")] if fell_back else lines


def _latency(latency: dict[str, Any], limit: float | None) -> str:
    name = latency["statistic"]
    bound = f"at most {format_ms(latency['upper'])} with {latency['confidence']:.0%} confidence"
    if latency["upper"] is None:
        bound = f"which takes {latency['needed_samples']} independent calls to bound"
    basis = f"{latency['basis']}, {latency['samples']} calls, limit {_limit(limit, format_ms)}"
    return f"{name} {format_ms(latency[name])}, {bound} ({basis})"


def _memory(memory: dict[str, Any], limit: int | None) -> str:
    share = f"peak {format_bytes(memory['peak_bytes'])}, {format_bytes(memory['baseline_bytes'])} of it the interpreter"
    if memory["bounded_by"] != "peak_bytes":
        share += f"; {memory['bounded_by'].replace('+', ' + ')} {format_bytes(memory['bounded_bytes'])} is what a limit bounds"
    return f"{share} ({memory['basis']}, limit {_limit(limit, format_bytes)})"


def print_estimated(document: dict[str, Any]) -> None:
    """The answer where the device is not here: every figure is an estimate, and the engine has not run."""
    latency, memory, limits = document["latency_ms"], document["memory"], document["limits"]
    verification, bytes_limit = document["verification"], _limit(limits["max_memory_bytes"], format_bytes)
    click.echo(document["note"])
    print_pairs(
        [
            ("latency", f"{format_ms(latency['estimate'])} (estimated, limit {_limit(limits['max_latency_ms'], format_ms)})"),
            ("memory", f"{format_bytes(memory['device_bytes'])} of the GPU's, CUDA apart (estimated, limit {bytes_limit})"),
            ("factors", document["efficiency"]["source"]),
            ("quality", _quality(document["quality"])),
            *_precision(document),
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


def print_profiles(document: dict[str, Any]) -> None:
    """Of each run the table of what was measured, the answer where anything was limited, and where the samples are."""
    for run in document.get("runs", [document]):
        if run["status"] == "failed":
            print_choice(run)
            continue
        if "runs" in document:
            click.echo(_where(run))
        print_candidates(run)
        if any(run["limits"][name] is not None for name in ("max_latency_ms", "max_memory_bytes")):
            print_choice(run)
        click.echo(f"samples: {run['observations']}")


def print_candidates(document: dict[str, Any]) -> None:
    """One row a candidate."""
    header = ("budget", "p50", "p95", "p95 at most", "p99", "peak memory", "quality", "verdict")
    print_table(header, [_row(c) for c in document["candidates"]])


def _row(candidate: dict[str, Any]) -> list[str]:
    latency, memory, quality = candidate["latency_ms"], candidate["memory"], candidate["quality"]
    times = [format_ms(latency[key]) if latency else "-" for key in ("p50", "p95", "upper", "p99")]
    peak = format_bytes(memory["peak_bytes"]) if memory else "-"
    return [f"K={candidate['budget']}", *times, peak, f"{quality['value']:.4g}" if quality else "-", candidate["verdict"]]
