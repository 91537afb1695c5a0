"""One byte after the other: a step of our stream, against recomputing the sequence, and over the floor of its own GEMVs.

    python -m tests.benchmarks.decode -o out/bench [--quick] [--budgets 2 8 32]

No peer has a step mode: the paper's path computes all 2,048 positions again for every new byte. `push` is what an app calls;
`step-graph` is its graph alone; `push-past-L` goes on beyond the trained length, with the ring and the state made anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks.contender import FLOOR, OURS, PEERS, Contender
from tests.benchmarks.match import compare, setting_of
from tests.benchmarks.prefill import GROUPS as PREFILL
from tests.benchmarks.report import Comparison, Run, parser, ratio_table, time_table, tried_table
from tests.benchmarks.turns import Pace

PUSH, PAST, STEP = (Contender(OURS, spelling) for spelling in ("push", "push-past-L", "step-graph"))
BELOW = Contender(FLOOR, "stream-1")
GROUPS = {
    "ours": [PUSH],
    "ours past L": [PAST],
    "ours, graph alone": [STEP],
    "floor": [BELOW],
    "torch eager": PREFILL["bytes"]["torch eager"],
}


def main() -> None:
    """Run, print, write."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=30.0, help="of rounds for each budget (30)")
    run = Run("decode", options.parse_args())
    pace = Pace(seconds=0.0, least=3) if run.arguments.quick else Pace(run.arguments.seconds, least=10)
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as scratch:
        settings = [setting_of("bytes", k, Path(run.arguments.work or scratch), run) for k in run.arguments.budgets]
        comparisons = [compare(run, setting, GROUPS, pace, PEERS, _add_ratios) for setting in settings]
    tables = [ratio_table(comparisons), *map(time_table, comparisons), *map(tried_table, comparisons)]
    run.finish({"comparisons": [c.to_json() for c in comparisons]}, tables)


def _add_ratios(comparison: Comparison) -> None:
    eager = next((p.name for p in comparison.players if p.contender.peer == "torch eager"), None)
    comparison.add("recomputing in torch eager / our step", eager, PUSH.name)
    comparison.add("our step / floor", PUSH.name, BELOW.name)
    comparison.add("our step's graph alone / floor", STEP.name, BELOW.name)
    comparison.add("our step past L / our step", PAST.name, PUSH.name)


if __name__ == "__main__":
    main()
