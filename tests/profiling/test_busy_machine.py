"""Real engines on a machine that other processes keep busy: what is measured there must not be taken for the engine's speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from essm_deploy.profiling.choose import choose
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement, disturbed
from essm_deploy.runtime.host import available_cpus
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.local import LocalLauncher
from tests.runtime.tiny import engine_entry

ENGINE = Engine.from_json(engine_entry("k8"))
SETTINGS = Settings(batch=20_000, min_samples=150, max_seconds=4.0)  # a call of a few milliseconds: longer than a time slice
PER_CPU = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no scheduling statistics"),
]


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes for each processor that do nothing but compute."""
    command = [sys.executable, "-c", "while True: pass"]
    rivals = [subprocess.Popen(command) for _ in range(PER_CPU * len(available_cpus()))]
    try:
        yield
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


def test_a_busy_machine_leaves_the_question_open_instead_of_blaming_the_engine(bundle: Path) -> None:
    def look(budget: BudgetKey, attempt: Attempt) -> Measurement:
        return measure_engine(LocalLauncher(), bundle, ENGINE, SETTINGS, budget=budget, attempt=attempt)

    fastest = min(look(8, Attempt()).samples_ms)  # whatever else runs here, a call that nothing disturbed takes that long
    with busy_machine():
        answer = choose([Candidate(8)], Limits(max_latency_ms=1.3 * fastest), look)
        refused = choose([Candidate(8)], Limits(max_latency_ms=0.01 * fastest), look)
    shared = answer.measurements[8]
    assert disturbed(shared)
    assert any(text.startswith("contention: ") for text in shared.warnings)
    assert shared.latency.upper is None or shared.latency.upper > 1.3 * fastest  # honest: calls did take longer
    assert (answer.status, answer.verdicts[8].status) == ("inconclusive", "inconclusive")
    assert "leaves" in answer.message
    # No call was so fast, even without the share of it that was waiting: the answer is no on any machine.
    assert refused.status == "nothing_fits"
