"""Ctrl-C once: what is being measured comes to its end. Twice: it does not."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from essm_deploy.errors import WorkerError
from essm_deploy.profiling.interrupt import finishing


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def measure(*steps: Callable[[], object], say: Callable[[str], None] = lambda line: None) -> None:
    with finishing("K=8", say):
        for step in steps:
            step()


def die() -> None:
    raise WorkerError("died")


def test_the_first_one_takes_effect_when_the_block_has_ended() -> None:
    said: list[str] = []
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        measure(press, lambda: done.append("measured and saved"), say=said.append)
    assert done == ["measured and saved"]
    assert said == ["finishing K=8, then stopping; Ctrl-C again stops at once"]


def test_the_second_one_acts_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        measure(press, press, lambda: done.append("never"))
    assert done == []


def test_without_one_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGINT)
    measure()
    with pytest.raises(WorkerError):
        measure(die)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_engine_that_fails_after_it_is_not_tried_again() -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(press, die)


def test_a_run_in_the_background_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        measure(press)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_measure() -> None:
    done: list[str] = []
    thread = threading.Thread(target=measure, args=(lambda: done.append("measured"),))
    thread.start()
    thread.join()
    assert done == ["measured"]
