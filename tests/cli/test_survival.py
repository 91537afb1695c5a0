"""A sweep that is interrupted, killed or started twice, as real processes: what was measured survives, and nothing mixes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint

# The command line with measurements of a tenth of the usual length.
SHORT = """
from essm_deploy.profiling import measure
plain = measure.Settings
short = {"min_samples": 100, "min_seconds": 0.05, "max_seconds": 4.0, "warmup_seconds": 0.2}
measure.Settings = lambda **options: plain(**{**short, **options})
from essm_deploy.cli import main
main()
"""
HOLD = """
import sys
from essm_deploy.profiling.locks import THIS_MACHINE, hold_devices
with hold_devices([THIS_MACHINE], print, wait=False):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A sweep over four budgets."""
    checkpoint = make_checkpoint(tmp_path / "model", budgets=[2, 4, 6, 8])
    return [sys.executable, "-c", SHORT, "profile", str(checkpoint), "--format", "json"]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


def measured(process: subprocess.Popen[str], count: int) -> list[str]:
    """The budgets that were measured, once there are `count`."""
    assert process.stderr is not None
    found: list[str] = []
    while len(found) < count:
        line = process.stderr.readline()
        assert line, "the sweep ended early"
        found += re.findall(r"(K=\d+): p95", line)
    return found


def lines_until(process: subprocess.Popen[str], text: str, count: int) -> Iterator[str]:
    """Lines of stderr until `text` was in so many of them."""
    assert process.stderr is not None
    while count and (line := process.stderr.readline()):
        count -= text in line
        yield line


def end(command: list[str]) -> str:
    """Run the same command to its end; returns what it said."""
    again = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["candidates"]) == 4
    return again.stderr


def test_ctrl_c_once_finishes_the_engine_and_twice_stops_at_once(command: list[str]) -> None:
    first = start(command)
    before = measured(first, 1)
    time.sleep(0.2)  # the next engine is in progress: starting a process takes longer
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (130, "")
    finished = re.findall(r"(K=\d+): p95", err)
    assert "Ctrl-C again stops at once" in err
    assert len(finished) <= 1  # the one in progress, and no other; none if it had not begun yet
    assert re.search(r"error: interrupted; \S+observations\.jsonl keeps what was measured: the same command resumes\n$", err)

    kept = len(before) + len(finished)
    second = start(command)
    assert second.stderr is not None
    assert sum("measured before the interruption" in line for line in lines_until(second, "measured before", kept)) == kept
    time.sleep(0.1)  # as above
    second.send_signal(signal.SIGINT)
    assert any("Ctrl-C again stops at once" in line for line in second.stderr)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (130, "")
    assert "calls in a fresh process" not in err

    said = end(command)
    assert f"resuming an interrupted sweep: {kept} measurement(s) kept" in said
    for budget in (*before, *finished):
        assert f"{budget}: measured before the interruption" in said


def test_a_killed_sweep_loses_the_engine_in_progress_alone_and_leaves_nothing_to_the_next(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = start(command)
    before = measured(process, 2)
    process.kill()
    rest = re.findall(r"(K=\d+): p95", process.communicate()[1])
    assert len([*temporary.glob("essm-deploy-*")]) == 1
    kept = re.search(r"resuming an interrupted sweep: (\d+) measurement", end(command))
    assert kept is not None
    # The line is printed after the record is on disk: one more may be there than was seen.
    assert len(before) + len(rest) <= int(kept[1]) <= len(before) + len(rest) + 1
    assert [*temporary.glob("essm-deploy-*")] == []


def test_a_second_sweep_of_the_machine_is_refused_or_waits(command: list[str]) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD], text=True, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == "held\n"
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert f"error: this machine is being measured by process {holder.pid} since" in refused.stderr
        waiting = start([*command, "--budgets", "2", "--wait"])
        assert waiting.stderr is not None
        line = next(line for line in waiting.stderr if "waiting for this machine" in line)
        assert f"measured by process {holder.pid} since" in line
        assert waiting.poll() is None
        holder.communicate("\n", timeout=30)
    out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err
    assert [entry["budget"] for entry in json.loads(out)["candidates"]] == [2]
