"""A push is all or nothing: whatever goes wrong in it, the stream is as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import essm_deploy.runtime as runtime
from essm_deploy.errors import EssmError, InputError
from essm_deploy.runtime.stream_runner import AnchorRunner, ChunkRunner
from tests.runtime.streams import (
    ANCHORED,
    SPOTTER,
    SWAP,
    TOTAL,
    VOCAB,
    WIDTH,
    WINDOW,
    ZERO,
    Tiny,
    assert_same,
    close_to,
    data,
    oracle,
)

Opened = Callable[[Tiny], runtime.Model]


@pytest.mark.parametrize(
    ("tiny", "inputs", "said"),
    [
        (WINDOW, [], "empty|whole numbers"),
        (WINDOW, np.zeros((1, 0), np.int64), "empty"),
        (WINDOW, [VOCAB], f"from {VOCAB} to {VOCAB}, the model takes 0 to {VOCAB - 1}"),
        (WINDOW, [0, -1], "from -1 to 0"),
        (WINDOW, [-1], "from -1 to -1"),
        (WINDOW, [0.5], "float64"),
        (WINDOW, [True], "bool"),
        (WINDOW, 3, "shape"),
        (WINDOW, [[1], [2]], "shape"),
        (WINDOW, ["a"], "whole numbers"),
        (SPOTTER, np.zeros((1, WIDTH)), "float64"),
        (SPOTTER, np.zeros((2, WIDTH + 1), np.float32), "shape"),
        (SPOTTER, np.zeros(WIDTH, np.float32), "shape"),
        (SPOTTER, np.full((2, WIDTH), np.nan, np.float32), "NaN"),
        (SPOTTER, np.full((9, WIDTH), np.inf, np.float32), "NaN or infinite"),
    ],
)
def test_a_wrong_input_is_one_line_and_leaves_the_stream_alone(opened: Opened, tiny: Tiny, inputs: Any, said: str) -> None:
    with opened(tiny).stream() as stream:
        stream.push(data(tiny)[:, :11])
        before = stream.state.checkpoint()
        with pytest.raises(InputError, match=said) as caught:
            stream.push(inputs)
        assert "\n" not in str(caught.value)
        assert_same(stream.state.checkpoint(), before)


@pytest.mark.parametrize("tiny", [WINDOW, ANCHORED, SWAP, ZERO, SPOTTER], ids=["window", "anchored", "swap", "zero", "spotter"])
@pytest.mark.parametrize("error", [EssmError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("count", [1, 4, 11, 30])
def test_a_push_that_fails_on_the_way_leaves_the_stream_as_it_was(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    tiny: Tiny,
    error: BaseException,
    count: int,
) -> None:
    inputs, warm = data(tiny, 60), 13
    reference = oracle(tiny, inputs, [8] * 60)
    with opened(tiny).stream() as stream:
        stream.push(inputs[:, :warm])
        before = stream.state.checkpoint()
        with monkeypatch.context() as patch:
            made = failing_calls(patch, -1, error)
            stream.push(inputs[:, warm : warm + count])
        stream.state.rollback(before)
        for failing in {0, len(made) // 2, len(made) - 1}:
            with monkeypatch.context() as patch:
                failing_calls(patch, failing, error)
                with pytest.raises(type(error)):
                    stream.push(inputs[:, warm : warm + count])
            assert stream.position == warm
            assert_same(stream.state.checkpoint(), before)
        assert close_to(stream.push(inputs[:, warm:]), reference[:, -1])


def test_an_anchor_that_fails_takes_the_push_back(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = data(ANCHORED)
    with opened(ANCHORED).stream() as stream:
        stream.push(tokens[:, :14])
        before = stream.state.checkpoint()
        with monkeypatch.context() as patch:
            step = AnchorRunner.step

            def broken(self: AnchorRunner) -> None:
                step(self)
                raise KeyboardInterrupt

            patch.setattr(AnchorRunner, "step", broken)
            with pytest.raises(KeyboardInterrupt):
                stream.push(tokens[:, 14:15])
        assert_same(stream.state.checkpoint(), before)
        assert close_to(stream.push(tokens[:, 14:]), oracle(ANCHORED, tokens, [8] * TOTAL)[:, -1])


def failing_calls(patch: pytest.MonkeyPatch, failing: int, error: BaseException) -> list[int]:
    """Let the engines' call number `failing` from now on write its outputs and then fail; the list grows with every call."""
    plain, made = ChunkRunner.__getattribute__, list[int]()

    def watched(self: ChunkRunner, name: str) -> Any:
        value = plain(self, name)
        return tuple(partial(run, call) for call in value) if name == "_calls" else value

    def run(call: Callable[[], None]) -> None:
        call()
        made.append(len(made))
        if made[-1] == failing:
            raise error

    patch.setattr(ChunkRunner, "__getattribute__", watched)
    return made
