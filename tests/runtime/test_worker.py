from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy.runtime import host, read_manifest
from essm_deploy.runtime.requirements import satisfies
from essm_deploy.runtime.wire import decode_arrays, encode_arrays
from tests.runtime.streams import Tiny, write_stream_bundle
from tests.runtime.tiny import LENGTH, WIDTH, engine_entry, expected


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
    assert loaded["affinity"] == sorted(os.sched_getaffinity(0))
    assert warm["iterations"] >= 1
    samples = [value for answer in answers[3:-2] for value in answer["ms"]]
    assert len(samples) == done["samples"] >= 50
    assert all(value > 0 for value in samples)
    assert {answer["mode"] for answer in answers[3:-2]} == {"back_to_back"}
    assert (memory["device_bytes"], memory["nvml_bytes"], memory["bounded_by"]) == (None, None, "peak_bytes")
    assert {"device_bytes", "nvml_bytes"} <= set(memory["reasons"])
    assert 0 < memory["pss_bytes"] <= memory["peak_bytes"]
    assert {"waited_share", "stolen_share", "throttling"} < set(done)
    assert 0 < memory["baseline_bytes"] <= memory["peak_bytes"]
    assert memory["anonymous_bytes"] + memory["file_bytes"] <= memory["peak_bytes"] + 2**20  # counters lag by pages


def test_a_paced_measurement_takes_both_modes_in_one_process(bundle: Path) -> None:
    asked = request(bundle, min_samples=60, pace_ms=3.0, paced_samples=40, paced_seconds=5.0)
    answers, status = talk(json.dumps(asked) + "\n")
    assert status == 0, answers
    modes = [answer["mode"] for answer in answers if answer["event"] == "samples"]
    counts = {mode: sum(len(a["ms"]) for a in answers if a.get("mode") == mode) for mode in modes}
    assert modes == sorted(modes)  # first those that follow one another, then the paced ones
    assert counts["paced"] == 40
    assert counts["back_to_back"] >= 60
    assert answers[-1]["samples"] == sum(counts.values())


def test_sampling_goes_on_until_a_bound_is_supported(bundle: Path) -> None:
    asked = request(bundle, min_samples=10, min_seconds=0.0, support={"percentile": 0.95, "samples": 120})
    answers, status = talk(json.dumps(asked) + "\n")
    assert status == 0, answers
    assert answers[-1]["samples"] >= 120


def test_an_engine_is_run_on_given_arrays(bundle: Path) -> None:
    features = np.random.default_rng(0).standard_normal((3, LENGTH, WIDTH)).astype(np.float32)
    lengths = np.array([6, 2, 4])
    inputs = encode_arrays({"features": features, "lengths": lengths})
    asked = {"op": "run", "root": str(bundle), "engine": engine_entry("k8"), "threads": 1, "inputs": inputs}
    answers, status = talk(json.dumps(asked) + "\n")
    assert [answer["event"] for answer in answers] == ["hello", "loaded", "outputs", "done"], answers
    assert status == 0
    logits = decode_arrays(answers[2]["outputs"], "outputs")["logits"]
    np.testing.assert_allclose(logits, expected(features, lengths), rtol=1e-6, atol=1e-6)  # one fp32 product


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        ({}, "InputError", "no rows"),
        ([], "BundleError", "an array"),
        ({"features": 1}, "BundleError", "expected an object"),
        ({"features": {"dtype": "float32", "shape": [1, 6, 3], "data": "AAAA"}}, "BundleError", "3 bytes"),
        ({"features": {"dtype": "str", "shape": [1], "data": "AAAA"}}, "BundleError", "one of"),
        ({"features": {"dtype": "uint8", "shape": [2**30, 2**30, 2**30], "data": ""}}, "BundleError", "0 bytes"),
        ({f"x{i}": {} for i in range(65)}, "BundleError", "at most 64"),
        (encode_arrays({"features": np.zeros((1, 6, 3))}), "InputError", "float64"),
        (encode_arrays({"features": np.zeros((1, 7, 3), np.float32)}), "InputError", "at most 6"),
        (
            encode_arrays({"features": np.zeros((2, 6, 3), np.float32), "lengths": np.ones(3, int)}),
            "InputError",
            "equally many",
        ),
    ],
)
def test_arrays_that_do_not_hold_together_are_one_clear_error(bundle: Path, inputs: Any, error: str, said: str) -> None:
    asked = {"op": "run", "root": str(bundle), "engine": engine_entry("k8"), "threads": 1, "inputs": inputs}
    answers, status = talk(json.dumps(asked) + "\n")
    assert (answers[-1]["event"], answers[-1]["type"], status) == ("error", error, 2), answers[-1]
    assert said in answers[-1]["message"]
    assert "\n" not in answers[-1]["message"]


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
        ({"support": {"percentile": 95, "samples": 10}}, "BundleError", 2),
        ({"pace_ms": "fast"}, "BundleError", 2),
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
        "import os, sys; from essm_deploy.runtime.channel import claim_stdout; channel = claim_stdout(); "
        "print('python noise', flush=True); os.write(1, b'C noise\\n'); channel.send('hello')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == '{"event": "hello"}\n'
    assert "python noise" in done.stderr
    assert "C noise" in done.stderr


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
