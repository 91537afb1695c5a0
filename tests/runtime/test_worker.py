from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy.errors import InputError
from essm_deploy.runtime import TensorInfo, host, read_manifest
from essm_deploy.runtime.memory import read_memory
from essm_deploy.runtime.requirements import satisfies
from essm_deploy.runtime.timing import SamplingPlan, random_inputs, sample, timed_ms, warm_up
from tests.runtime.streams import Tiny, write_stream_bundle
from tests.runtime.tiny import LENGTH, engine_entry


def request(bundle: Path, **changes: Any) -> dict[str, Any]:
    return {
        "op": "measure",
        "root": str(bundle),
        "engine": engine_entry("k8"),
        "threads": 1,
        "batch": 2,
        "length": None,
        "seed": 0,
        "warmup": {"max_seconds": 0.2, "window": 5, "tolerance": 0.5},
        "min_samples": 50,
        "min_seconds": 0.01,
        "max_seconds": 2.0,
        "pace_ms": None,
    } | changes


def talk(line: str) -> tuple[list[dict[str, Any]], int]:
    command = [sys.executable, "-m", "essm_deploy.runtime.worker"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=60, check=False)
    return [json.loads(answer) for answer in done.stdout.splitlines()], done.returncode


def test_a_measurement_is_told_in_the_documented_order(bundle: Path) -> None:
    answers, status = talk(json.dumps(request(bundle)) + "\n")
    assert status == 0, answers
    events = [answer["event"] for answer in answers]
    assert events[:3] == ["hello", "loaded", "warm"]
    assert set(events[3:-2]) == {"samples"}
    assert events[-2:] == ["memory", "done"]
    hello, loaded, warm, memory, done = answers[0], answers[1], answers[2], answers[-2], answers[-1]
    assert hello["protocol"] == 1
    assert {"essm_deploy", "python", "numpy", "onnxruntime"} == set(hello["versions"])
    assert loaded["provider"] == "CPUExecutionProvider"
    assert loaded["threads"] == 1
    assert loaded["load_ms"] > 0
    assert warm["iterations"] >= 1
    samples = [value for answer in answers[3:-2] for value in answer["ms"]]
    assert len(samples) == done["samples"] >= 50
    assert all(value > 0 for value in samples)
    assert memory["device_bytes"] is None
    assert "device_bytes" in memory["reasons"]
    assert 0 < memory["baseline_bytes"] <= memory["peak_bytes"]
    assert memory["anonymous_bytes"] + memory["file_bytes"] <= memory["peak_bytes"] + 2**20  # counters lag by pages


@pytest.mark.parametrize(
    "tiny",
    [Tiny(anchor_every=2), Tiny(overflow="refuse"), Tiny(overflow="restart"), Tiny(classifier=True)],
    ids=["window", "refuse", "restart", "classifier"],
)
def test_a_stream_engine_is_measured_as_one_push_after_another(tmp_path: Path, tiny: Tiny) -> None:
    root = write_stream_bundle(tmp_path / "streaming", tiny)
    engine = read_manifest(root).engine("k8-stream-4").to_json()
    answers, status = talk(json.dumps(request(root, engine=engine, batch=1)) + "\n")
    assert status == 0, answers
    assert answers[-1]["samples"] == sum(len(a["ms"]) for a in answers if a["event"] == "samples") >= 50
    wrong = talk(json.dumps(request(root, engine=engine, batch=2)) + "\n")[0][-1]
    assert (wrong["type"], wrong["exit_code"]) == ("InputError", 2)


@pytest.mark.parametrize(
    ("line", "error", "code"),
    [
        ("garbage\n", "BundleError", 2),
        ("[1]\n", "WorkerError", 4),
        ('{"op": "explode"}\n', "BundleError", 2),
        ('{"op": "measure"}\n', "BundleError", 2),
        ("x" * (1 << 21) + "\n", "WorkerError", 4),
    ],
)
def test_a_wrong_request_is_answered_by_an_error(line: str, error: str, code: int) -> None:
    answers, status = talk(line)
    assert [answer["event"] for answer in answers] == ["hello", "error"]
    assert answers[1]["type"] == error
    assert answers[1]["exit_code"] == status == code
    assert "\n" not in answers[1]["message"]


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        ({"root": "/nonexistent"}, "IntegrityError", 1),
        ({"length": LENGTH + 1}, "InputError", 2),
        ({"engine": engine_entry("k8") | {"requires": {"onnxruntime": ">=99"}}}, "UnavailableError", 3),
        ({"min_seconds": -1}, "BundleError", 2),
        ({"surprise": 1}, "BundleError", 2),
    ],
)
def test_an_error_keeps_its_class_and_exit_code(bundle: Path, changes: dict[str, Any], error: str, code: int) -> None:
    answers, status = talk(json.dumps(request(bundle, **changes)) + "\n")
    assert (answers[-1]["event"], answers[-1]["type"], status) == ("error", error, code), answers[-1]


def test_no_request_is_no_error() -> None:
    answers, status = talk("")
    assert [answer["event"] for answer in answers] == ["hello"]
    assert status == 0


def test_what_libraries_print_does_not_reach_the_protocol() -> None:
    program = (
        "import os, sys; from essm_deploy.runtime import worker; channel = worker._claim_stdout(); "
        "print('python noise', flush=True); os.write(1, b'C noise\\n'); channel.send('hello')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == '{"event": "hello"}\n'
    assert "python noise" in done.stderr
    assert "C noise" in done.stderr


def test_memory_that_cannot_be_read_is_none_with_a_reason(tmp_path: Path) -> None:
    absent = read_memory(tmp_path / "status")
    assert (absent.peak_bytes, absent.anonymous_bytes, absent.file_bytes) == (None, None, None)
    assert set(absent.reasons) == {"peak_bytes", "anonymous_bytes", "file_bytes"}
    (tmp_path / "status").write_text("VmHWM:\t   2048 kB\nRssAnon:\tlots\n")
    partial = read_memory(tmp_path / "status")
    assert partial.peak_bytes == 2048 * 1024
    assert partial.anonymous_bytes is None
    assert "RssAnon" in partial.reasons["anonymous_bytes"]


def test_memory_of_this_process_holds_what_it_allocates() -> None:
    before = read_memory()
    block = np.ones(32 * 2**20, dtype=np.uint8)
    after = read_memory()
    assert before.anonymous_bytes is not None
    assert after.anonymous_bytes is not None
    assert after.anonymous_bytes - before.anonymous_bytes >= 0.9 * block.nbytes  # other threads may free a little


def test_random_inputs_are_seeded_and_in_range() -> None:
    declared = (TensorInfo("tokens", "int64", ("batch", 50), maximum=3), TensorInfo("lengths", "int64", ("batch",), 50))
    first, again = (random_inputs(declared, batch=4, length=20, seed=7) for _ in range(2))
    assert [set(inputs) for inputs in first] == [{"tokens"}] * 4
    tokens = np.stack([inputs["tokens"] for inputs in first])
    assert tokens.shape == (4, 4, 20)
    assert (tokens.min(), tokens.max()) == (0, 3)
    assert all((a["tokens"] == b["tokens"]).all() for a, b in zip(first, again, strict=True))
    with pytest.raises(InputError, match="batch of 1"):
        random_inputs((TensorInfo("x", "float32", (1, 5)),), batch=2, length=None, seed=0)
    with pytest.raises(InputError, match="free sizes"):
        random_inputs((TensorInfo("x", "float32", (1, "time")),), batch=1, length=None, seed=0)


def test_warm_up_ends_when_the_median_settles_and_gives_up_at_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    def timings(values: Any) -> Any:
        return lambda call: next(values)

    monkeypatch.setattr("essm_deploy.runtime.timing.timed_ms", timings(iter([9.0, *[5.0] * 4, *[2.0] * 12])))
    settled = warm_up(lambda: None, max_seconds=60, window=4, tolerance=0.03)
    assert (settled.settled, settled.iterations, settled.first_ms, settled.median_ms) == (True, 17, 9.0, 2.0)
    monkeypatch.setattr("essm_deploy.runtime.timing.timed_ms", timings(1.0 + i // 4 % 2 for i in count()))
    restless = warm_up(lambda: None, max_seconds=0.01, window=4, tolerance=0.03)
    assert not restless.settled


def test_sampling_honours_floors_and_ceiling() -> None:
    many = sum(map(len, sample(lambda: None, SamplingPlan(min_samples=10, min_seconds=0.05, max_seconds=1))))
    assert many > 10  # the floor of seconds decides for a fast call
    few = sum(map(len, sample(lambda: timed_ms(_nap), SamplingPlan(min_samples=100, min_seconds=0.0, max_seconds=0.05))))
    assert 1 <= few < 100  # the ceiling decides for a slow one


def test_a_paced_call_starts_no_earlier_than_its_turn() -> None:
    plan = SamplingPlan(min_samples=5, min_seconds=0.0, max_seconds=5, pace_ms=20.0)
    took = timed_ms(lambda: list(sample(lambda: None, plan)))
    assert took >= 5 * 20.0


def test_the_host_is_described_without_guessing() -> None:
    assert 1 <= host.physical_cores() <= len(host.available_cpus())
    assert {"machine", "cpu", "physical_cores", "logical_cpus", "governor", "system"} == set(host.describe())


@pytest.mark.parametrize(
    ("version", "conditions", "met"),
    [
        ("1.32.0", ">=1.20", True),
        ("1.9.0", ">=1.20", False),
        ("1.20", ">=1.20.0", True),
        ("2.0.1", ">=1.20,<2", False),
        ("1.23.0rc1", "==1.23", True),
        ("1.23.1", "!=1.23.1", False),
    ],
)
def test_versions_compare_by_number(version: str, conditions: str, met: bool) -> None:
    assert satisfies(version, conditions) is met


def _nap() -> None:
    import time

    time.sleep(0.005)
