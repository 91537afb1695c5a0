"""Streams: step = chunk = sequence = the reference, at every budget, however the input is cut, and far past L tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.errors import InputError, UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.reference import forward, restarted_convolution
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Budget, Engine
from essm_deploy.runtime.stream import Stream
from tests.checkpoints import BYTES, KEYWORDS, make_checkpoint

STEP = 1e-4
"""float32 states round at every token: what streams are held to, past the trained length as well."""
LONG = {"seq_len": 300, "k_max": 4, "budgets": [2, 4]}
"""Longer than what the filters themselves are used for, so that the state is the small recurrent one."""
BUDGETS = (1, 2, 3, 4)


class Streams:
    """Stream engines of every budget of one random model, with the chunk lengths 1 and 20, and its reference."""

    def __init__(self, folder: Path, base: dict[str, Any], **changes: Any) -> None:
        self.checkpoint = open_checkpoint(make_checkpoint(folder / "model", base, None, smooth=True, **LONG, **changes))
        self.config = EsSsmConfig.model_validate(self.checkpoint.config)
        (folder / "engines").mkdir()
        self.emitter: Emitter = prepare(folder / "engines", self.checkpoint, [4], 1, BACKENDS["onnxruntime"])
        self.engines = [self.emitter.stream(k, chunk) for k in BUDGETS for chunk in (1, 20)]
        self.anchor = self.emitter.anchor()
        engines = [*self.engines, *([self.anchor] if self.anchor else [])]
        budgets = [Budget(f"k{k}", {"k": k}, k) for k in BUDGETS]
        self.pool = EnginePool(folder / "engines", engines, budgets=budgets, threads=1)

    def open(self, budget: int = 4, max_length: int | None = None) -> Stream:
        return Stream(self.pool, self.engine(budget), batch=1, max_length=max_length)

    def engine(self, budget: int) -> Engine:
        return next(e for e in self.engines if e.budget == f"k{budget}")

    def inputs(self, tokens: int, seed: int = 0) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        if self.config.vocab_size:
            return rng.integers(0, self.config.vocab_size, (1, tokens))
        return rng.standard_normal((1, tokens, self.config.input_size or 0)).astype("f4")

    def reference(self, inputs: NDArray[Any], budget: int = 4) -> NDArray[np.float64]:
        return forward(self.config, self.checkpoint.tensors, inputs, budget=budget)

    def play(self, inputs: NDArray[Any], pushes: Sequence[int], budget: int = 4) -> NDArray[Any]:
        with self.open(budget) as stream:
            return pushed(stream, inputs, pushes)


def pushed(stream: Stream, inputs: NDArray[Any], pushes: Sequence[int]) -> NDArray[Any]:
    """All positions of a language model, or the answer after the last push of a classifier."""
    ends = np.cumsum(pushes)
    everywhere = stream.answers_everywhere
    parts = [stream.push(inputs[:, e - n : e], all_positions=everywhere) for n, e in zip(pushes, ends, strict=True)]
    return np.concatenate(parts, axis=1) if everywhere else parts[-1]


def relative(value: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return Streams(tmp_path_factory.mktemp("window"), BYTES)


@pytest.fixture(scope="module")
def restart(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return Streams(tmp_path_factory.mktemp("restart"), BYTES, overflow="restart")


def test_the_state_is_small_and_the_same_for_every_budget(window: Streams) -> None:
    states = {e.stream.state for e in window.engines if e.stream}
    shapes = {i.shape for e in window.engines for i in e.inputs if i.name == "state"}
    assert len(states) == 1
    ((layers, batch, rows, width),) = shapes
    assert (layers, batch, width) == (2, 1, 16)
    assert isinstance(rows, int)
    assert rows <= 24


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("chunk", [1, 20])
def test_a_stream_is_the_reference_to_eight_times_the_trained_length(window: Streams, budget: int, chunk: int) -> None:
    inputs = window.inputs(8 * 300)
    logits = window.play(inputs, [chunk] * (8 * 300 // chunk), budget)
    expected = window.reference(inputs, budget)
    assert relative(logits, expected) <= STEP
    assert relative(logits[:, -300:], expected[:, -300:]) <= STEP  # no drift at the end either


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pushes=st.lists(st.integers(1, 97), min_size=1, max_size=20), budget=st.sampled_from(BUDGETS))
def test_how_the_input_is_cut_does_not_matter(window: Streams, pushes: list[int], budget: int) -> None:
    inputs = window.inputs(sum(pushes), seed=len(pushes))
    assert relative(window.play(inputs, pushes, budget), window.reference(inputs, budget)) <= STEP


def test_a_budget_may_change_in_mid_stream(window: Streams) -> None:
    """The state of a layer depends on its inputs alone, so the first layer goes on as if it had always been so."""
    inputs = window.inputs(200)
    with window.open(budget=4) as stream:
        pushed(stream, inputs[:, :100], [100])
        stream.budget = 2
        after = pushed(stream, inputs[:, 100:], [1] * 100)
    assert after.shape == (1, 100, 30)
    with window.open(budget=4) as stream:
        pushed(stream, inputs[:, :100], [100])
        stream.budget = 2
        stream.budget = 4
        back = pushed(stream, inputs[:, 100:], [1] * 100)
    assert relative(back, window.reference(inputs)[:, 100:]) <= STEP
    assert relative(after, window.reference(inputs)[:, 100:]) > 1e-2


@pytest.mark.parametrize("chunk", [1, 20])
def test_restart_is_the_reference_past_the_trained_length(restart: Streams, chunk: int) -> None:
    inputs = restart.inputs(5 * 300)
    assert relative(restart.play(inputs, [chunk] * (1500 // chunk)), restart.reference(inputs)) <= STEP


def test_restart_cuts_history_where_it_says() -> None:
    taps, u = np.ones(4), np.ones((1, 9, 1))
    seen = restarted_convolution(u, taps)[0, :, 0]
    assert np.round(seen, 9).tolist() == [1, 2, 3, 4, 3, 4, 3, 4, 3]


def test_refuse_refuses_and_takes_nothing(tmp_path: Path) -> None:
    streams = Streams(tmp_path, BYTES, overflow="refuse")
    inputs = streams.inputs(301)
    with streams.open() as stream:
        stream.push(inputs[:, :299])
        with pytest.raises(InputError, match="300"):
            stream.push(inputs[:, 299:])
        assert stream.position == 299
    with pytest.raises(UsageError, match="refuses to go on"):
        streams.reference(inputs)


def test_a_classifier_answers_at_every_hop(tmp_path: Path) -> None:
    streams = Streams(tmp_path, KEYWORDS)
    inputs = streams.inputs(900)
    with streams.open() as stream:
        for end in range(60, 901, 60):
            answer = stream.push(inputs[:, end - 60 : end])
            assert relative(answer, streams.reference(inputs[:, :end])) <= STEP


@pytest.mark.parametrize("base", [KEYWORDS, BYTES], ids=["classifier", "language model"])
def test_short_filters_stream_through_their_own_inputs(tmp_path: Path, base: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "model", base, None))
    emitter = prepare(tmp_path, checkpoint, [8], 1, BACKENDS["onnxruntime"])
    assert emitter.anchor() is None
    for budget in (1, 8):
        engines = [emitter.stream(budget, chunk) for chunk in (1, 5)]
        pool, config = EnginePool(tmp_path, engines, threads=1), EsSsmConfig.model_validate(checkpoint.config)
        inputs = family_of(checkpoint).example_inputs(checkpoint, 1, 3)
        data = np.concatenate([next(iter(inputs.values()))] * 4, axis=1)
        with Stream(pool, engines[0], batch=1) as stream:
            answer = pushed(stream, data, [1, 5, 7, 24, 23, 36])
        assert relative(answer, forward(config, checkpoint.tensors, data, budget=budget)) <= 2e-6
