from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.errors import InputError, UnavailableError, UsageError, WorkerError
from essm_deploy.profiling.measure import Settings, Timeouts, measure_engine
from essm_deploy.profiling.verdict import Attempt, Measurement
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.local import LocalLauncher
from tests.profiling.scripted import Scripted
from tests.runtime.tiny import engine_entry

QUICK = Settings(min_samples=200, min_seconds=0.02, max_seconds=3.0, warmup_seconds=0.3, threads=1)
SHORT = Timeouts(start=20.0, load=1.0, report=1.0)
ENGINE = Engine.from_json(engine_entry("k8"))


def measure(launcher: Any, root: Path = Path(), settings: Settings = QUICK, timeouts: Timeouts = SHORT) -> Measurement:
    return measure_engine(launcher, root, ENGINE, settings, budget=8, timeouts=timeouts)


def test_a_real_engine_is_measured_in_a_fresh_process(bundle: Path) -> None:
    result = measure_engine(LocalLauncher(), bundle, ENGINE, QUICK, budget=8)
    assert result.budget == 8
    assert result.latency.samples == len(result.samples_ms) >= 200
    assert result.latency.lower is not None
    assert result.latency.upper is not None
    assert 0 < result.latency.lower <= result.latency.p95 <= result.latency.upper
    assert result.latency.p50 <= result.latency.p90 <= result.latency.p95 <= result.latency.p99
    assert (result.latency.basis, result.latency.look_confidence) == ("measured", 0.975)
    memory = result.memory
    assert memory.bounded_by == "peak_bytes"
    assert memory.device_bytes is None
    assert "device_bytes" in memory.reasons
    assert memory.baseline_bytes is not None
    assert memory.peak_bytes is not None
    assert memory.pss_bytes is not None
    assert 10 * 2**20 < memory.baseline_bytes <= memory.peak_bytes
    assert 0 < memory.pss_bytes <= memory.peak_bytes
    assert result.environment["provider"] == "CPUExecutionProvider"
    assert result.environment["threads"] == 1
    assert result.environment["settings"]["min_samples"] == 200


def test_a_measurement_survives_the_round_trip_through_json(bundle: Path) -> None:
    result = measure_engine(LocalLauncher(), bundle, ENGINE, QUICK, budget=8)
    assert Measurement.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert "samples_ms" not in result.to_json(samples=False)


def test_a_second_look_takes_more_samples_within_bounds() -> None:
    usual, scaled = Settings(), Settings().scaled(20)
    assert scaled.min_samples == 20 * usual.min_samples
    assert usual.min_seconds < scaled.min_seconds < scaled.max_seconds <= 60
    assert Settings().scaled(1) == Settings()
    with pytest.raises(UsageError, match="confidence"):
        Settings(confidence=1.0)


def test_the_workers_own_error_keeps_its_class(bundle: Path) -> None:
    with pytest.raises(InputError, match="at most 6"):
        measure(LocalLauncher(), bundle, Settings(length=7), Timeouts())
    with pytest.raises(UnavailableError, match="cannot be started"):
        measure(LocalLauncher(python="/nonexistent/python"))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('Segmentation fault')", "expected a JSON object"),
        ("print('[1]')", "expected a JSON object"),
        ("print('x' * 3_000_000)", "longer than"),
        ("print('{\"event\": ', end='')", "cut"),
        ("send('warm')", "expected hello"),
        ("pass", "ended with status 0"),
        ("sys.stderr.write('a library is missing\\n'); sys.exit(3)", "status 3.*a library is missing"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9.*memory"),
        ("send('hello'); time.sleep(60)", "silent for 1 s"),
        ("ready(); send('samples', ms=[1.0, -1.0])", "durations"),
        ("ready(); send('samples', ms='many')", "durations"),
        ('ready(); print(\'{"event": "samples", "ms": [NaN]}\')', "expected a JSON object"),
        ("ready(); send('samples', mode='asleep', ms=[1.0])", "mode 'asleep'"),
        ("ready(); send('samples', ms=[0.5, 0.0]); send('samples', ms=[0.0, 0])", "2 calls of 0 ms in a row"),
        ("ready(); send('samples', ms=[9000.0]); memory(); send('done', samples=1)", "add up to 9.0 s, and only"),
        ("ready(); send('samples', mode='paced', ms=[1.0]); memory(); send('done', samples=1)", "samples of paced, expected"),
        ("ready(affinity='all'); send('samples', ms=[1.0]); memory(); send('done', samples=1)", "list of CPUs"),
        ("ready(); send('samples', ms=[1.0]); memory(bounded_by='__class__'); send('done', samples=1)", "bounded_by"),
        ("ready(); send('samples', ms=[1.0]); memory(); send('done', samples=1, stolen_share=-1)", "stolen_share"),
        ("ready(); send('samples', ms=[1.0]); memory(); send('done', samples=1, throttling=3)", "not an object"),
        ("ready(); send('samples', ms=[1.0]); memory(); send('done', samples=1, warnings='x')", "few sentences"),
        (
            "ready(); send('samples', ms=[1.0]); memory(); send('done', samples=1, throttling={'ceiling_khz': [1]})",
            "before and after",
        ),
        ("ready(); memory(peak_bytes=0); send('done')", "positive number of bytes"),
        ("ready(); memory(); send('done', samples=0)", "0 samples"),
        ("ready(); send('samples', ms=[1.0]); memory(); send('done', samples=2)", "2 samples and 1 arrived"),
        ("ready(); send('samples', ms=[1.0]); os._exit(1)", "status 1"),
        ("send('error', type='SystemExit', message='x')", "unknown kind"),
        ("send('error', type='EssmError')", "unknown kind"),
        ("send('error', type='os', message='x')", "unknown kind"),
    ],
)
def test_garbage_and_death_are_worker_errors_in_one_line(program: str, said: str) -> None:
    launcher = Scripted(program)
    with pytest.raises(WorkerError, match=said) as caught:
        measure(launcher)
    assert "\n" not in str(caught.value)
    assert launcher.started[0].poll() is not None


def test_a_quantity_that_cannot_be_read_stays_null() -> None:
    program = "ready(); send('samples', ms=[1.0] * 300); memory(reasons={'peak_bytes': 'no /proc'}); send('done', samples=300)"
    result = measure(Scripted(program))
    assert result.memory.peak_bytes is None
    assert result.memory.reasons == {"peak_bytes": "no /proc"}


def test_warnings_tell_of_drift_and_of_a_warm_up_that_did_not_settle() -> None:
    program = """
        send("hello"); sys.stdin.readline(); send("loaded", load_ms=1)
        send("warm", settled=False, seconds=3.0, first_ms=1)
        send("samples", ms=[1.0] * 150); send("samples", ms=[2.0] * 150)
        memory(peak_bytes=1); send("done", samples=300)
    """
    warnings = " ".join(measure(Scripted(program)).warnings)
    assert "drift" in warnings
    assert "warm-up" in warnings


@pytest.mark.parametrize(
    ("samples", "done", "kind"),
    [
        ("[1.0 + i % 7 / 100 for i in range(300)]", "", None),
        ("[1.0] * 150 + [1.2] * 150", "", "drift"),
        ("[1.0 + i % 7 / 100 + i % 2 for i in range(300)]", "", "bimodality"),
        ("[1.0 + i % 7 / 100 + 9 * (i % 25 == 0) for i in range(300)]", "", "outliers"),
        ("[1.0 + i % 53 / 20 for i in range(300)]", "", "spread"),
        ("[1.0 + i % 7 / 100 + 9 * (140 <= i < 170) for i in range(300)]", "", "dependence"),
        ("[1.0 + i % 7 / 100 for i in range(71)]", "", "support"),
        ("[1.0 + i % 7 / 100 for i in range(300)]", "waited_share=0.2", "contention"),
        ("[1.0 + i % 7 / 100 for i in range(300)]", "stolen_share=0.2", "contention"),
        ("[1.0 + i % 7 / 100 for i in range(300)]", "throttling={'throttle_events': 1}", "throttling"),
    ],
)
def test_each_warning_comes_about_and_a_calm_worker_has_none(samples: str, done: str, kind: str | None) -> None:
    program = f"""
        ready(); ms = [value / 10 for value in {samples}]; send('samples', ms=ms)
        memory(); send('done', samples=len(ms), {done})
    """
    kinds = {text.partition(":")[0] for text in measure(Scripted(program)).warnings}
    assert kinds == set() if kind is None else kind in kinds


def test_what_the_worker_says_of_its_machine_and_its_clock_becomes_warnings() -> None:
    program = """
        ready(affinity=[0, 3]); send("samples", ms=[1.0] * 300); memory(peak_bytes=1)
        throttling = {"frequency_khz": {"before": 2e6, "after": 1e6}, "throttle_events": 2}
        send("done", samples=300, stolen_share=0.2, throttling=throttling, warnings=["coarse"])
    """
    result = measure(Scripted(program))
    assert [text.partition(":")[0] for text in result.warnings] == ["contention", "throttling", "throttling", "coarse"]
    assert result.stolen_share == 0.2
    assert result.environment["affinity"] == [0, 3]
    assert result.environment["throttling"]["throttle_events"] == 2
    assert result.environment["stability"]["outlier_share"] == 0.0


def test_both_modes_are_measured_in_one_process_and_the_paced_one_decides(bundle: Path) -> None:
    settings = replace(QUICK, pace_ms=4.0, min_samples=110)
    result = measure_engine(LocalLauncher(), bundle, ENGINE, settings, budget=8)
    assert result.back_to_back is not None
    assert (result.latency.pace_ms, result.back_to_back.pace_ms) == (4.0, None)
    assert result.latency.samples == len(result.samples_ms) >= 110
    assert result.back_to_back.samples == len(result.back_to_back_samples_ms) >= 110
    assert result.latency.upper is not None
    assert result.back_to_back.upper is not None
    assert result.cold_start_ms is not None
    assert result.cold_start_ms["total"] == result.cold_start_ms["load"] + result.cold_start_ms["first"] > 0


def test_a_call_longer_than_the_pace_is_a_warning() -> None:
    program = """
        ready(); send("samples", ms=[1.0] * 100); send("samples", mode="paced", ms=[1.0] * 80 + [3.0] * 20)
        memory(peak_bytes=1); send("done", samples=200)
    """
    warnings = measure(Scripted(program), settings=replace(QUICK, pace_ms=2.0)).warnings
    assert any(text.startswith("pace: 20% of the calls") for text in warnings)


@pytest.mark.parametrize(
    ("pace", "statistic", "samples", "seconds"),
    [
        (10.0, "p95", 300, 8.0),  # the usual floor of samples takes three seconds
        (100.0, "p95", 120, 13.2),  # twelve seconds' worth, and a tenth more of time
        (1000.0, "p95", 108, 118.8),  # what a bound takes, one and a half times: the largest sample alone is a wide bound
        (1000.0, "p50", 12, 13.2),
    ],
)
def test_a_pace_leaves_enough_calls_for_a_bound_within_sensible_time(
    pace: float, statistic: str, samples: int, seconds: float
) -> None:
    settings = Settings(pace_ms=pace, statistic=statistic)
    assert settings.paced() == (samples, pytest.approx(seconds))
    assert samples >= settings.needed_samples
    second, longest = settings.paced(20.0)
    assert second is not None
    assert longest is not None
    assert samples < second
    assert longest <= max(1.11 * 60, 2.01 * seconds)


def test_without_a_pace_nothing_is_paced() -> None:
    assert Settings().paced() == (None, None)


@pytest.mark.parametrize(("pace", "statistic"), [(0.0, "p95"), (-1.0, "p95"), (9000.0, "p95"), (2000.0, "p99")])
def test_a_pace_at_which_no_bound_comes_about_is_refused(pace: float, statistic: str) -> None:
    with pytest.raises(UsageError, match="expected a pace of more than 0 and at most"):
        Settings(pace_ms=pace, statistic=statistic)


def test_ctrl_c_ends_the_worker_and_is_passed_on() -> None:
    launcher = Scripted("ready()\nwhile True: send('samples', ms=[1.0]); time.sleep(0.01)")

    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        measure(launcher)
    thread.join()
    assert launcher.started[0].poll() == -signal.SIGKILL


def test_a_flood_of_samples_is_cut_off() -> None:
    with pytest.raises(WorkerError, match="more than 1000000 samples"):
        measure(Scripted("ready()\nwhile True: send('samples', ms=[1.0] * 100_000)"))


def test_the_environment_of_a_worker_is_not_the_shells(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    (bundle / "numpy.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(bundle)
    process = LocalLauncher().start()
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    out, _ = process.communicate("")
    assert json.loads(out.splitlines()[0])["event"] == "hello"
    assert b"OMP_NUM_THREADS" not in environment
    assert b"PYTHONPATH" not in environment


def test_attempts_number_the_looks() -> None:
    assert Attempt() == Attempt(number=1, scale=1.0)
