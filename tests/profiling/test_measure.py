from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.errors import InputError, UnavailableError, UsageError, WorkerError
from essm_deploy.profiling.measure import Settings, Timeouts, measure_engine
from essm_deploy.profiling.verdict import Attempt, Measurement
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.local import LocalLauncher
from tests.runtime.tiny import engine_entry

QUICK = Settings(min_samples=200, min_seconds=0.02, max_seconds=3.0, warmup_seconds=0.3, threads=1)
SHORT = Timeouts(start=20.0, load=1.0, report=1.0)
ENGINE = Engine.from_json(engine_entry("k8"))


@dataclass
class Scripted:
    """A worker that is any Python program; what was started is kept."""

    program: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def place(self, root: Path, engine: Engine) -> str:
        return str(root)

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(self.program)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        self.started.append(process)
        return process


PRELUDE = """
import json, os, signal, sys, time
def send(event, **values):
    print(json.dumps({"event": event, **values}), flush=True)
def ready():
    send("hello", protocol=1)
    sys.stdin.readline()
    send("loaded", load_ms=1.0, provider="x", threads=1)
    send("warm", iterations=1, settled=True, first_ms=1.0, median_ms=1.0, seconds=0.1)
def memory(**values):
    names = ("peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes")
    send("memory", **{**dict.fromkeys(names), "reasons": {}, **values})
"""


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
    assert 10 * 2**20 < memory.baseline_bytes <= memory.peak_bytes
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
    assert usual.min_seconds < scaled.min_seconds < scaled.max_seconds <= 30
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
        ("ready(); memory(peak_bytes=0)", "positive number of bytes"),
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
