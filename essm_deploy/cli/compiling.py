"""What `build` and `profile` share: their options, what these ask for, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from essm_deploy.cli.options import BUDGETS, FRACTION, LATENCY, SIZE, THREADS
from essm_deploy.errors import UsageError
from essm_deploy.resources import data_folder

if TYPE_CHECKING:
    from essm_deploy.compile import Request
    from essm_deploy.profiling.requirement import Requirement

_EXIT_CODES = {"ok": 0, "estimated": 0, "planned": 0, "nothing_fits": 1, "inconclusive": 5}
_BEST_TO_WORST = (0, 5, 1, 3, 4)
"""Of the exit codes of several runs: what leaves a device without a bundle is worse than a bundle that may not be the best."""

_OF_A_REQUIREMENT = (
    "max_memory",
    "min_quality",
    "min_retention",
    "statistic",
    "confidence",
    "pace",
    "kind",
    "batch",
    "threads",
)


def compiling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Target, limits, candidates and measurement settings."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = [
    click.option(
        "--target",
        "targets",
        multiple=True,
        default=("cpu",),
        show_default=True,
        help="A name from `essm-deploy targets`, or a .toml file; repeatable.",
    ),
    click.option(
        "--max-latency",
        "max_latencies",
        type=LATENCY,
        multiple=True,
        help="Limit of one call, like 10ms: its p95, with 95% confidence. Repeatable: one answer for each, from one sweep.",
    ),
    click.option(
        "--max-memory",
        type=SIZE,
        default=None,
        help="Limit of the whole process, or of a GPU's own memory where the engine runs on one; like 200MiB.",
    ),
    click.option(
        "--budget-file",
        "budget_files",
        multiple=True,
        help="Named limits, like realtime-keyword, or a .toml file; repeatable. An option given beside it takes the place of "
        "its own value.",
    ),
    click.option("--budgets", type=BUDGETS, default="trained", help="Candidates: 4,8,12, or all; default: those of training."),
    click.option("--all-K", "all_k", is_flag=True, help="Measure every candidate instead of searching."),
    click.option(
        "--statistic",
        type=click.Choice(["p50", "p90", "p95", "p99"]),
        default=None,
        help="Of the calls, that the limit bounds; default: p95.",
    ),
    click.option("--confidence", type=FRACTION, default=None, help="Of the bound, like 99%; default: 95%."),
    click.option(
        "--pace",
        type=LATENCY,
        default=None,
        help="Make one call in that time, like 100ms, as an app would; the limit bounds those. Default: one after the other.",
    ),
    click.option(
        "--kind",
        type=click.Choice(["sequence", "stream"]),
        default=None,
        help="The call that the limits bound; default: a step of the stream for text generation, else the sequence.",
    ),
    click.option(
        "--rebuilds",
        type=click.IntRange(0, 20),
        default=None,
        help="Build the chosen engine so often anew, to see the spread; default: 1 for `build` with a latency limit, else 0.",
    ),
    click.option("--wait", is_flag=True, help="Wait while another sweep measures the device; default: say so and stop."),
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
    click.option("--batch", type=click.IntRange(1, 1024), default=None, help="Rows of a measured call; default: 1."),
    click.option("--dynamic-batch", is_flag=True, help="Engines that take any batch, as --batch above 1 does."),
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


def make_requests(
    checkpoint: Path | None,
    *,
    targets: Sequence[str],
    max_latencies: Sequence[float],
    budget_files: Sequence[str],
    budgets: Any,
    all_k: bool,
    rebuilds: int | None,
    all_without_limits: bool = False,
    usual_rebuilds: int = 0,
    **options: Any,
) -> list[Request]:
    """What a command line asks: one request for every target and limit. Without a checkpoint, the shipped keyword spotter.

    `all_without_limits`: measure every candidate where neither latency nor memory is limited. `usual_rebuilds` are made where
    latency is limited and nothing else was said. `options` are further fields of a Request, and values that stand in the place
    of a budget file's own; None is not given.
    """
    from essm_deploy.compile import Request
    from essm_deploy.profiling.measure import Settings

    stated = {name: options.pop(name, None) for name in _OF_A_REQUIREMENT}
    _check_distinct("--target", targets)
    return [
        Request(
            checkpoint=checkpoint or data_folder("checkpoints") / "keywords",
            target=target,
            limits=requirement.limits,
            requirement=requirement.name,
            budgets=budgets,
            exhaustive=all_k or (all_without_limits and not requirement.limits_measured),
            kind=requirement.kind,
            rebuilds=rebuilds if rebuilds is not None else usual_rebuilds if requirement.max_latency is not None else 0,
            settings=requirement.settings(Settings()),
            **options,
        )
        for target in targets
        for requirement in _requirements(budget_files, max_latencies, stated)
    ]


def exit_code(document: dict[str, Any]) -> int:
    """The exit code that belongs to a document's status; of several runs, the worst: 4, 3, 1, 5, 0."""
    if "runs" in document:
        return max((exit_code(run) for run in document["runs"]), key=_rank)
    if document["status"] == "failed":
        return int(document["exit_code"])
    return _EXIT_CODES[document["status"]]


def _rank(code: int) -> int:
    return _BEST_TO_WORST.index(code) if code in _BEST_TO_WORST else len(_BEST_TO_WORST)


def _requirements(files: Sequence[str], latencies: Sequence[float], stated: dict[str, Any]) -> list[Requirement]:
    from essm_deploy.profiling.requirement import Requirement, find_requirement

    names = [f"{limit:g}ms" for limit in latencies]
    if files and len(latencies) > 1:
        raise UsageError("several --max-latency beside --budget-file: each could be meant for each file, so give one of them")
    if files:
        given = dict(stated, max_latency=latencies[0] if latencies else None)
        found = [find_requirement(name).overridden(**given) for name in files]
        _check_distinct("--budget-file", [str(requirement.name) for requirement in found])
    else:
        _check_distinct("--max-latency", names)
        found = [Requirement(name, max_latency=limit) for name, limit in zip(names, latencies, strict=True)]
        if len(found) < 2:  # nothing to tell apart
            found = [Requirement(max_latency=latencies[0] if latencies else None)]
        found = [requirement.overridden(**stated) for requirement in found]
    for requirement in found:
        requirement.check(f"{requirement.name}, with the options beside it" if files else "the options contradict each other")
    return found


def _check_distinct(option: str, values: Sequence[str]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise UsageError(f"{option} {twice[0]} is given twice")
