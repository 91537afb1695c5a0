from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essm_deploy.errors import BuildError, UsageError
from essm_deploy.profiling.observations import JOURNAL_NAME, open_journal, sweep_key, sweeps_directory
from essm_deploy.profiling.verdict import Measurement
from tests.profiling.simulated import measurement

KEY = sweep_key(weights="abc", target="cpu")


def sample(budget: int, value: float = 1.0) -> Measurement:
    return measurement(budget, [value] * 100)


def fill(root: Path, *budgets: int, key: str = KEY) -> Path:
    with open_journal(key, root=root) as journal:
        for budget in budgets:
            journal.append(f"k{budget}", 1, sample(budget))
        return journal.path


def test_equal_parts_give_equal_keys_in_any_order() -> None:
    assert sweep_key(a=1, b=[2]) == sweep_key(b=[2], a=1) != sweep_key(a=1, b=[3])


def test_the_cache_directory_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ESSM_CACHE", str(tmp_path))
    assert sweeps_directory() == tmp_path / "sweeps"
    monkeypatch.delenv("ESSM_CACHE")
    assert sweeps_directory().parts[-2:] == ("essm-deploy", "sweeps")


def test_an_unfinished_sweep_is_resumed_with_its_samples(tmp_path: Path) -> None:
    fill(tmp_path, 2, 4)
    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.resumed == 2
        assert journal.find("k4") == sample(4)
        assert journal.find("k4", attempt=2) is None
        assert journal.find("k8") is None


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    calls = []

    def measure() -> Measurement:
        calls.append(1)
        return sample(4)

    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.measured("k2", 1, measure) == sample(2)
        assert journal.measured("k4", 1, measure) == journal.measured("k4", 1, measure)
    assert len(calls) == 1


def test_a_finished_sweep_is_kept_but_measured_afresh(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with open_journal(KEY, root=tmp_path) as journal:
        finished = journal.finish()
    assert finished is not None
    assert finished.is_file()
    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.resumed == 0
        assert journal.finish() is None


def test_only_the_last_finished_sweeps_are_kept(tmp_path: Path) -> None:
    for index in range(8):
        (fill(tmp_path, 2).parent / f"finished-2020010{index}.jsonl").touch()
    with open_journal(KEY, root=tmp_path) as journal:
        journal.finish()
        assert len(list(journal.path.parent.glob("finished-*"))) == 5


@pytest.mark.parametrize("tail", [b'{"engine": "k4", "att', b"\xff\xfe\n", b"\n", b'{"engine": "k4"}\n', b"[]\n", b"null\n"])
def test_a_torn_or_damaged_end_is_cut_off_and_the_rest_kept(tmp_path: Path, tail: bytes) -> None:
    path = fill(tmp_path, 2)
    whole = path.read_bytes()
    with path.open("ab") as stream:
        stream.write(tail)
    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.resumed == 1
        assert path.read_bytes() == whole
        journal.append("k4", 1, sample(4))
    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.resumed == 2


def test_a_damaged_line_in_the_middle_costs_that_engine_alone(tmp_path: Path) -> None:
    path = fill(tmp_path, 2, 4, 8)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\x00" + lines[2][41:], lines[3]]))
    with open_journal(KEY, root=tmp_path) as journal:
        assert (journal.resumed, journal.damaged) == (2, 1)
        assert journal.find("k4") is None
        assert journal.find("k8") == sample(8)
        journal.append("k4", 1, sample(4))
        assert journal.was_resumed("k8")
        assert not journal.was_resumed("k4")
    with open_journal(KEY, root=tmp_path) as journal:
        assert (journal.resumed, journal.damaged) == (3, 0)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@given(changes=CHANGES)
@settings(max_examples=60, deadline=None)
def test_a_journal_with_any_bytes_changed_is_opened_and_holds_nothing_wrong(changes: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:  # a fresh one for each example: what one leaves must not reach the next
        root = Path(directory)
        path = fill(root, 2, 4)
        content = bytearray(path.read_bytes())
        for position, byte in changes:
            content[position % len(content)] = byte
        path.write_bytes(content)
        with open_journal(KEY, root=root) as journal:
            for engine in ("k2", "k4"):
                found = journal.find(engine)
                assert found is None or isinstance(found, Measurement)
            journal.append("k8", 1, sample(8))
        with open_journal(KEY, root=root) as journal:
            assert journal.find("k8") == sample(8)


def test_a_journal_cut_at_any_byte_can_be_opened(tmp_path: Path) -> None:
    path = fill(tmp_path, 2, 4)
    content = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for cut in [*range(0, len(content), 97), *ends, *[end - 1 for end in ends]]:
        path.write_bytes(content[:cut])
        with open_journal(KEY, root=tmp_path) as journal:
            assert journal.resumed == max(0, sum(end <= cut for end in ends) - 1)
        path.unlink(missing_ok=True)


def test_records_of_another_key_are_never_used(tmp_path: Path) -> None:
    path = fill(tmp_path, 2)
    other = sweep_key(weights="abd", target="cpu")
    with open_journal(other, root=tmp_path) as journal:
        assert journal.resumed == 0
    journal.path.write_bytes(path.read_bytes())  # copied by hand into the other key's directory
    with open_journal(other, root=tmp_path) as journal:
        assert journal.resumed == 0
        assert not journal.path.exists()


def test_two_sweeps_of_one_key_do_not_mix(tmp_path: Path) -> None:
    with open_journal(KEY, root=tmp_path), pytest.raises(UsageError, match="in use"), open_journal(KEY, root=tmp_path):
        pass
    with open_journal(KEY, root=tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="ESSM_CACHE"), open_journal(KEY, root=tmp_path / "file"):
        pass


def test_no_space_left_is_one_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = fill(tmp_path, 2)
    whole = path.read_bytes()
    with open_journal(KEY, root=tmp_path) as journal:
        path.unlink()
        path.symlink_to("/dev/full")
        with pytest.raises(BuildError, match="No space left"):
            journal.append("k4", 1, sample(4))
    path.unlink()
    path.write_bytes(whole)
    with open_journal(KEY, root=tmp_path) as journal:
        assert journal.resumed == 1


SWEEP = """
import sys, time
from pathlib import Path
from essm_deploy.profiling.observations import open_journal
from tests.profiling.simulated import measurement
with open_journal(sys.argv[2], root=Path(sys.argv[1])) as journal:
    for budget in range(2, 1000):
        journal.measured(f"k{budget}", 1, lambda: measurement(budget, [1.0] * 100))
        print(budget, flush=True)
"""


def test_a_kill_loses_at_most_the_engine_in_progress(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", SWEEP, str(tmp_path), KEY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    reported = 5 + len(rest)
    with open_journal(KEY, root=tmp_path) as journal:
        assert reported <= journal.resumed <= reported + 1
        assert json.loads((tmp_path / KEY / JOURNAL_NAME).read_text().splitlines()[0])["key"] == KEY
