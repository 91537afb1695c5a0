from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from essm_deploy.runtime import contention
from essm_deploy.runtime.contention import Contention


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no scheduling statistics")
def test_competing_for_one_processor_shows() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    rivals = [multiprocessing.get_context("fork").Process(target=spin, args=(1.5,)) for _ in range(2)]
    try:
        for rival in rivals:
            rival.start()
        watch = Contention()
        spin(1.0)
        share = watch.share(threads=1)
    finally:
        for rival in rivals:
            rival.join()
        os.sched_setaffinity(0, before)
    assert share is not None
    assert share > 0.3  # two rivals leave a third of the time


def test_a_kernel_without_statistics_is_unknown_not_quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contention, "_TASKS", tmp_path / "nothing")
    assert Contention().share(1) is None
