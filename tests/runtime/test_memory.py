from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from essm_deploy.runtime.memory import read_memory


def test_memory_that_cannot_be_read_is_none_with_a_reason(tmp_path: Path) -> None:
    absent = read_memory(tmp_path / "status", tmp_path / "smaps_rollup")
    assert (absent.peak_bytes, absent.anonymous_bytes, absent.file_bytes, absent.pss_bytes) == (None,) * 4
    assert set(absent.reasons) == {"peak_bytes", "anonymous_bytes", "file_bytes", "pss_bytes"}
    (tmp_path / "status").write_text("VmHWM:\t   2048 kB\nRssAnon:\tlots\n")
    (tmp_path / "smaps_rollup").write_text("55d2-7ffc ---p 00000000 00:00 0    [rollup]\nRss:  1680 kB\nPss:   190 kB\n")
    partial = read_memory(tmp_path / "status", tmp_path / "smaps_rollup")
    assert (partial.peak_bytes, partial.pss_bytes) == (2048 * 1024, 190 * 1024)
    assert partial.anonymous_bytes is None
    assert "RssAnon" in partial.reasons["anonymous_bytes"]


def test_memory_of_this_process_holds_what_it_allocates() -> None:
    before = read_memory()
    block = np.ones(32 * 2**20, dtype=np.uint8)
    after = read_memory()
    assert before.anonymous_bytes is not None
    assert after.anonymous_bytes is not None
    assert after.anonymous_bytes - before.anonymous_bytes >= 0.9 * block.nbytes  # other threads may free a little


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel keeps no rollup of mappings")
def test_weights_that_two_processes_map_count_half_for_each(tmp_path: Path) -> None:
    weights, size = tmp_path / "weights.bin", 16 * 2**20
    weights.write_bytes(bytes(size))
    program = f"""
import mmap, sys
from essm_deploy.runtime.memory import read_memory
with open({str(weights)!r}, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    alone = sum(mapped[:: 4096])
    print(read_memory().pss_bytes, flush=True)
    sys.stdin.readline()
    print(read_memory().pss_bytes, flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        alone = int(process.stdout.readline())
        with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert sum(mapped[::4096]) == 0
            process.stdin.write("\n")
            process.stdin.flush()
            shared = int(process.stdout.readline())
    assert alone - shared == pytest.approx(size / 2, rel=0.2)  # the interpreter's own pages come and go a little
