"""Peak memory of fresh processes: long prompts through our stream, and one sequence through everybody.

    python -m tests.benchmarks.memory -o out/bench [--quick] [--budgets 2 8 32]

The peak is VmHWM, from the start of the interpreter to the first answer, set-up included; `own share` is what the process
held before it opened anything. Prompts go through the largest chunk that was compiled, with the ring (the stream may pass
the trained length), and only the last position's logits are asked for.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import engines
from tests.benchmarks.contender import OURS, Contender, Setting
from tests.benchmarks.match import setting_of
from tests.benchmarks.report import Run, parser, table
from tests.benchmarks.turns import DidNotRun, open_player, prepare_all

LENGTHS = (1024, 16384, 131072)
SEQUENCE = (
    Contender(OURS, "sequence"),
    Contender(OURS, "prompt", "2048"),
    Contender("torch eager", "fft-batched"),
    Contender("torch eager", "fft-loop-transposed"),
    Contender("torch.compile", "fft-real-transposed", "default"),
    Contender("ONNX Runtime", "fft-real-transposed"),
    Contender("OpenVINO", "dft-gemms"),
    Contender("ExecuTorch", "dft-gemms"),
)
_MIB = 2.0**20


def main() -> None:
    """Run, print, write."""
    run = Run("memory", parser(__doc__).parse_args())
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as scratch:
        settings = [setting_of("bytes", k, Path(run.arguments.work or scratch), run) for k in run.arguments.budgets]
        results = [_measure(setting, run) for setting in settings]
    tables = ["## Prompts through the stream", _prompt_table(results), "## State per layer", _state_table(results)]
    tables += ["## One sequence of 2,048 tokens", _sequence_table(results)]
    run.finish({"budgets": results}, tables)


def _measure(setting: Setting, run: Run) -> dict[str, Any]:
    """All peaks of one budget, in turns: every length and everybody once, then again."""
    run.progress(f"bytes, K={setting.budget}: preparing")
    lengths = LENGTHS[: 2 if run.arguments.quick else 3]
    contenders = [*(Contender(OURS, "prompt", str(length)) for length in lengths), *SEQUENCE]
    failures = prepare_all(contenders, setting, run.progress)
    peaks: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    absent: dict[str, str] = {}
    for _ in range(1 if run.arguments.quick else 3):
        for contender in dict.fromkeys(contenders):
            _add_peak(peaks, absent, contender, setting, failures, run)
    state = engines.state_bytes(setting.ours, setting.budget)
    return {"budget": setting.budget, "state_bytes_per_layer": state, "peaks": peaks, "did_not_run": absent}


def _add_peak(
    peaks: dict[str, list[dict[str, Any]]],
    absent: dict[str, str],
    contender: Contender,
    setting: Setting,
    failures: dict[str, str],
    run: Run,
) -> None:
    if contender.name in absent:
        return
    try:
        player = open_player(contender, setting, failures, extra={})
        peaks[contender.name].append(player.process.ask({"do": "memory"}, 60.0) | {"seconds": player.seconds})
        player.process.close()
        run.progress(f"  {contender.name}: {peaks[contender.name][-1]['peak_bytes'] / _MIB:.0f} MiB")
    except DidNotRun as reason:
        absent[contender.name] = str(reason)


def _prompt_table(results: list[dict[str, Any]]) -> str:
    lengths = [n for n in LENGTHS if any(_name(n) in result["peaks"] for result in results)]
    rows = []
    for result in results:
        peaks = {n: _median(result, _name(n), "peak_bytes") for n in lengths}
        growth = [f"{peaks[longer] / peaks[LENGTHS[1]]:.3f}" for longer in lengths[1:]]
        start = _median(result, _name(lengths[0]), "start_bytes")
        rows.append([f"K={result['budget']}", *(_mib(peaks[n]) for n in lengths), _mib(start), growth[-1]])
    columns = ["peak MiB", *(f"{n:,} tokens" for n in lengths), "own share", f"{lengths[-1]:,} / {LENGTHS[1]:,}"]
    return table(columns, rows)


def _state_table(results: list[dict[str, Any]]) -> str:
    rows = [
        [f"K={r['budget']}", s["rows"], s["state"], s.get("ring", 0)] for r in results for s in [r["state_bytes_per_layer"]]
    ]
    return table(["", "floats per feature", "state bytes", "ring bytes, only past L"], rows)


def _sequence_table(results: list[dict[str, Any]]) -> str:
    names = [contender.name for contender in SEQUENCE]
    rows = [[name, *(_cell(result, name) for result in results)] for name in names]
    return table(["peak MiB (own share)", *(f"K={result['budget']}" for result in results)], rows)


def _cell(result: dict[str, Any], name: str) -> str:
    if name in result["did_not_run"]:
        return f"did not run: {result['did_not_run'][name]}"
    return f"{_mib(_median(result, name, 'peak_bytes'))} ({_mib(_median(result, name, 'start_bytes'))})"


def _median(result: dict[str, Any], name: str, figure: str) -> float:
    return float(np.median([peak[figure] for peak in result["peaks"][name]]))


def _name(length: int) -> str:
    return Contender(OURS, "prompt", str(length)).name


def _mib(size: float) -> str:
    return f"{size / _MIB:.1f}"


if __name__ == "__main__":
    main()
