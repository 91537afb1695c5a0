"""The whole sequence at once: our sequence engine, every peer, and the floor of the engine's own GEMMs.

    python -m tests.benchmarks.prefill -o out/bench [--quick] [--budgets 2 8 32] [--models bytes keywords]

"fastest peer" is the fastest of all that ran, whatever its spelling; "by FFT" are those that take the paper's path. The
others spell the convolution by hand in real arithmetic, because their runtime has no usable FFT. Peers keep the memory that
they free (torch's page faults cost it up to a third of its time), which is not how they are installed; rows that say "as
installed" show them so. Our own ONNX graph in OpenVINO is our lowering and no peer; it has a row of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.contender import ELSEWHERE, FLOOR, OURS, PEERS, Contender, Setting
from tests.benchmarks.match import compare, setting_of
from tests.benchmarks.ratios import fastest
from tests.benchmarks.report import Comparison, Run, parser, ratio_table, time_table, tried_table
from tests.benchmarks.turns import Pace
from tests.benchmarks.workloads import WORKLOADS

ENGINE, BELOW = Contender(OURS, "sequence"), Contender(FLOOR, "sequence")

_PAPER = ("fft-batched", "fft-transposed", "fft-loop-transposed")
_COMPILED = (
    ("fft-real-transposed", "default"),
    ("fft-real-transposed", "max-autotune-no-cudagraphs"),
)
_EXPORTED = "fft-real-transposed"


def _groups(eager: tuple[str, ...], rewrites: tuple[str, ...]) -> dict[str, list[Contender]]:
    """Who takes part: of every group the fastest."""
    return {
        OURS: [ENGINE],
        FLOOR: [BELOW],
        "torch eager": [Contender("torch eager", spelling) for spelling in eager],
        "torch eager as installed": [Contender("torch eager", spelling, installed=True) for spelling in _PAPER[1:]],
        "torch.compile": [Contender("torch.compile", spelling, mode) for spelling, mode in _COMPILED],
        "torch.compile as installed": [Contender("torch.compile", *_COMPILED[0], installed=True)],
        "ONNX Runtime": [Contender("ONNX Runtime", _EXPORTED)],
        "ONNX Runtime, rewritten": [Contender("ONNX Runtime", spelling) for spelling in rewrites],
        "OpenVINO": [Contender("OpenVINO", _EXPORTED)],
        "OpenVINO, rewritten": [Contender("OpenVINO", spelling) for spelling in rewrites],
        "ExecuTorch, rewritten": [Contender("ExecuTorch", spelling) for spelling in rewrites],
        ELSEWHERE: [Contender(ELSEWHERE)],
    }


GROUPS = {
    "bytes": _groups((*_PAPER, "essm-train"), ("dft-gemms",)),  # of 2,048 tokens, toeplitz is twice the work
    "keywords": _groups((*_PAPER, "toeplitz", "dft-gemms"), ("toeplitz", "dft-gemms")),
}
BUDGETS = {"bytes": None, "keywords": (8,)}
"""The budgets that a model is measured at; None: all that were asked for."""


def main() -> None:
    """Run, print, write."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    options.add_argument("--seconds", type=float, default=30.0, help="of rounds for each budget of the byte model (30)")
    run = Run("prefill", options.parse_args())
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as scratch:
        work = Path(run.arguments.work or scratch)
        settings = [setting_of(model, k, work, run) for model in run.arguments.models for k in _budgets(model, run)]
        comparisons: list[Comparison] = []
        for setting in settings:
            comparisons.append(_compare(setting, run))
            run.save(*_results(comparisons))
    run.finish(*_results(comparisons))


def _results(comparisons: list[Comparison]) -> tuple[dict[str, Any], list[str]]:
    tables = []
    for model in dict.fromkeys(c.model for c in comparisons):
        of_model = [c for c in comparisons if c.model == model]
        tables += [f"## {model}: {_described(model)}", ratio_table(of_model), *map(time_table, of_model)]
        tables += map(tried_table, of_model)
    return {"comparisons": [c.to_json() for c in comparisons]}, tables


def _compare(setting: Setting, run: Run) -> Comparison:
    quick, bytes_model = run.arguments.quick, setting.checkpoint.name == "bytes"
    pace = Pace(0.0, least=3, hopeless=1) if quick else Pace(run.arguments.seconds if bytes_model else 10.0, hopeless=2)
    return compare(run, setting, GROUPS[setting.checkpoint.name], pace, (*PEERS, ELSEWHERE), _add_ratios)


def _budgets(model: str, run: Run) -> list[int]:
    measured = BUDGETS[model]
    return [k for k in run.arguments.budgets if measured is None or k in measured]


def _add_ratios(comparison: Comparison) -> None:
    ran = {player.name: player for player in comparison.players}
    peers = {name: player for name, player in ran.items() if player.contender.peer in PEERS}
    by_fft = {name: player for name, player in peers.items() if player.contender.by_fft}
    tuned = {p.contender.peer for p in peers.values() if p.contender.installed}  # who is here in both ways
    installed = {n: p for n, p in by_fft.items() if p.contender.installed or p.contender.peer not in tuned}
    groups = {"fastest peer": peers, "fastest peer by FFT": by_fft, "fastest peer by FFT as installed": installed}
    for title, group in groups.items():
        best = fastest({name: player.rounds for name, player in group.items()})
        comparison.notes[title] = best
        comparison.add(f"{title} / ours", best, ENGINE.name)
    comparison.add("ours / floor", ENGINE.name, BELOW.name)
    for name, player in ran.items():
        if player.contender.peer in (*PEERS, ELSEWHERE):
            comparison.add(f"{_title(player.contender)} / ours", name, ENGINE.name)


def _title(contender: Contender) -> str:
    way = "" if contender.peer == ELSEWHERE else " by FFT" if contender.by_fft else " rewritten"
    return contender.peer + way + (" as installed" if contender.installed else "")


def _described(model: str) -> str:
    config = WORKLOADS[model]
    source = f"vocabulary {config['vocab_size']}" if "vocab_size" in config else f"{config['input_size']} features"
    return f"{source}, d {config['hidden_size']}, {config['num_hidden_layers']} layers, L {config['seq_len']}"


if __name__ == "__main__":
    main()
