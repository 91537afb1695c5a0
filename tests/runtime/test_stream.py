"""What a stream computes, and what it never does: any split of an input gives the same, past L too."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import essm_deploy.runtime as runtime
from essm_deploy.errors import BundleError, InputError, UsageError
from essm_deploy.runtime.stream_runner import AnchorRunner
from tests.runtime.streams import (
    ALL,
    ANCHORED,
    BUDGETS,
    FIR,
    LABELS,
    NAMES,
    SPOTTER,
    SWAP,
    TOTAL,
    VOCAB,
    WINDOW,
    Tiny,
    assert_same,
    close_to,
    data,
    expected,
    oracle,
    pushed,
    write_stream_bundle,
)

Opened = Callable[[Tiny], runtime.Model]

splits = st.lists(st.integers(1, 9), min_size=1).map(
    lambda sizes: [n for i, n in enumerate(sizes) if sum(sizes[: i + 1]) <= TOTAL]
)


@pytest.mark.parametrize("tiny", ALL, ids=NAMES)
@settings(max_examples=12, deadline=None)
@given(sizes=splits)
def test_any_split_of_an_input_gives_what_the_whole_does(opened: Opened, tiny: Tiny, sizes: list[int]) -> None:
    sizes = [*sizes, TOTAL - sum(sizes)] if sum(sizes) < TOTAL else sizes
    inputs = data(tiny)
    with opened(tiny).stream(batch=tiny.batch) as stream:
        assert close_to(pushed(stream, tiny, inputs, sizes), expected(tiny, inputs, sizes))
        assert stream.position == TOTAL


@pytest.mark.parametrize("tiny", [WINDOW, SWAP, SPOTTER], ids=["window", "swap", "classifier"])
def test_stream_outputs_replays_a_whole_input_with_one_chunk_or_with_given_ones(opened: Opened, tiny: Tiny) -> None:
    model, inputs = opened(tiny), data(tiny)
    for chunk, sizes in ((1, [1] * TOTAL), (5, [5] * 7 + [1]), ([4, 30, 2], [4, 30, 2])):
        outputs = runtime.stream_outputs(model.root, model.manifest, 2, chunk, inputs, threads=1)
        assert close_to(outputs, expected(tiny, inputs, sizes, budget=2))
    for chunk in (0, [TOTAL + 1], [TOTAL, 0]):
        with pytest.raises(InputError, match="do not make up"):
            runtime.stream_outputs(model.root, model.manifest, 2, chunk, inputs)


def test_a_push_without_a_batch_axis_answers_without_one(opened: Opened) -> None:
    tokens = data(WINDOW)
    reference = oracle(WINDOW, tokens, [8] * TOTAL)[0]
    with opened(WINDOW).stream() as stream:
        last = stream.push(tokens[0, :5])
        assert last.shape == (VOCAB,)
        assert last.dtype == np.float32
        assert close_to(last, reference[4])
        assert stream.push(tokens[:, 5:6]).shape == (1, VOCAB)
        assert stream.push(tokens[0, 6:9].astype(np.uint8), all_positions=True).shape == (3, VOCAB)
        assert close_to(stream.push(list(tokens[0, 9:])), reference[-1])


def test_the_budget_changes_in_mid_stream_and_the_state_goes_on(opened: Opened) -> None:
    for tiny in (WINDOW, SWAP, SPOTTER):
        inputs = data(tiny)
        budgets = [8] * 7 + [2] * 13 + [8] * 16
        reference = oracle(tiny, inputs, budgets)
        with opened(tiny).stream() as stream:
            first = stream.push(inputs[:, :7])
            stream.budget = 2
            second = stream.push(inputs[:, 7:20])
            assert stream.budget == "k2"
            stream.budget = "k8"
            third = stream.push(inputs[:, 20:])
            with pytest.raises(UsageError, match="k2, k8"):
                stream.budget = 3
        for got, at in ((first, 6), (second, 19), (third, 35)):
            assert close_to(got, reference[:, at])


def test_a_stream_may_be_opened_at_another_budget(opened: Opened) -> None:
    tokens = data(WINDOW)
    for budget in BUDGETS:
        with opened(WINDOW).stream(budget=budget) as stream:
            assert close_to(stream.push(tokens), oracle(WINDOW, tokens, [budget] * TOTAL)[:, -1])


def test_the_state_is_made_anew_past_each_multiple_beyond_the_length(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    step = AnchorRunner.step
    monkeypatch.setattr(AnchorRunner, "step", lambda self: runs.append(self._buffers.position) or step(self))
    tokens = data(ANCHORED)[0]
    with opened(ANCHORED).stream() as stream:
        for token in tokens[:16]:
            stream.push([token])
        assert runs == [9, 12, 15]  # L = 8, every 3
        stream.push(tokens[16:26])  # chunks of 5: to 21, to 26
        assert runs == [9, 12, 15, 21, 26]
    with opened(ANCHORED).stream(max_length=8) as stream:
        stream.push(tokens[:8])
    assert len(runs) == 5


def test_anchors_take_away_the_drift_of_the_recurrence(tmp_path: Path) -> None:
    drifting = {"drift": 1e-2, "chunks": (1, 4)}
    tokens = data(WINDOW)
    errors = []
    for every in (None, 1):
        tiny = Tiny(anchor_every=every, **drifting)  # type: ignore[arg-type]
        model = runtime.load(write_stream_bundle(tmp_path / str(every), tiny), threads=1)
        with model.stream() as stream:
            logits = pushed(stream, tiny, tokens, [4] * 9)
        # The first chunk after an anchor starts from an exact state: its first token sees one wrong term only.
        reference = oracle(tiny, tokens, [8] * TOTAL)[:, 16::4]
        errors.append(np.linalg.norm(logits[:, 16::4] - reference) / np.linalg.norm(reference))
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("tiny", [WINDOW, FIR, SWAP, ANCHORED], ids=["window", "fir", "swap", "anchored"])
def test_a_stream_that_ends_by_the_length_needs_no_ring_and_says_where_it_ends(opened: Opened, tiny: Tiny) -> None:
    tokens = data(tiny)
    with opened(tiny).stream(max_length=8) as stream:
        assert "ring" not in stream.state.checkpoint()["arrays"]
        assert close_to(pushed(stream, tiny, tokens[:, :8], [3, 5]), oracle(tiny, tokens[:, :8], [8] * 8))
        before = stream.state.checkpoint()
        with pytest.raises(InputError, match="ends at 8 tokens"):
            stream.push(tokens[0, :1])
        assert stream.position == 8
        assert_same(stream.state.checkpoint(), before)
        stream.state.reset()
        assert close_to(stream.push(tokens[0, :2]), oracle(tiny, tokens[:, :2], [8] * 2)[0, -1])


def test_refuse_ends_at_the_length(opened: Opened) -> None:
    for longest in (None, 100):
        with opened(Tiny(overflow="refuse")).stream(max_length=longest) as stream:
            stream.push([1] * 6)
            with pytest.raises(InputError, match="ends at 8 tokens: 6 are in, 3 more"):
                stream.push([1] * 3)
            stream.push([1] * 2)


def test_chunks_are_taken_largest_first_and_what_they_cannot_make_up_is_refused(tmp_path: Path) -> None:
    tiny = Tiny(chunks=(4, 6), length=12)
    tokens = data(tiny)
    with runtime.load(write_stream_bundle(tmp_path / "bundle", tiny), threads=1).stream() as stream:
        assert stream.chunks == (6, 4)
        got = pushed(stream, tiny, tokens, [8, 4, 14, 10])  # 4+4, 4, 6+4+4, 6+4
        assert close_to(got, expected(tiny, tokens, [8, 4, 14, 10]))
        for count in (1, 2, 3, 5, 7):
            with pytest.raises(InputError, match=f"{count} tokens cannot be made up of the compiled chunks 6, 4"):
                stream.push([1] * count)
        assert stream.position == TOTAL


def test_scores_rank_the_labels_after_every_hop(opened: Opened) -> None:
    features = data(SPOTTER)
    reference = oracle(SPOTTER, features, [8] * TOTAL)
    with opened(SPOTTER).stream() as stream:
        with pytest.raises(InputError, match="nothing was pushed"):
            stream.scores()
        for hop in range(4):
            logits = stream.push(features[0, hop * 3 : hop * 3 + 3])
            [ranking] = stream.scores()
            assert ranking[0]["label"] == LABELS[int(np.argmax(reference[0, hop * 3 + 2]))] == LABELS[int(logits.argmax())]
            assert sum(entry["score"] for entry in ranking) == pytest.approx(1)
        with pytest.raises(InputError, match="language models"):
            stream.push(features, all_positions=True)
        stream.state.reset()
        with pytest.raises(InputError, match="nothing was pushed"):
            stream.scores()


def test_a_batch_that_was_not_compiled_and_lengths_below_one_are_refused(opened: Opened) -> None:
    model = opened(WINDOW)
    with pytest.raises(InputError, match="compiled for a batch of 1, a batch of 3"):
        model.stream(batch=3)
    wrong: list[dict[str, Any]] = [{"batch": 0}, {"max_length": 0}, {"max_length": -1}, {"batch": True}, {"max_length": 1.5}]
    for options in wrong:
        with pytest.raises(InputError, match="at least 1"):
            model.stream(**options)


def test_a_closed_stream_refuses_everything(opened: Opened) -> None:
    with opened(WINDOW).stream() as stream:
        stream.push([1])
        state = stream.state
    stream.close()
    for act in (lambda: stream.push([1]), lambda: stream.push([1] * 9), lambda: stream.state, stream.prepare, state.reset):
        with pytest.raises(InputError, match="closed"):
            act()
    with pytest.raises(InputError, match="closed"):
        stream.budget = 2
    with pytest.raises(InputError, match="closed"):
        state.rollback(state.checkpoint())


def test_a_model_whose_engine_streams_cannot_run_and_says_so(opened: Opened) -> None:
    model = opened(WINDOW)
    assert (model.length, model.provider, model.threads) == (None, "CPUExecutionProvider", 1)
    with pytest.raises(UsageError, match=r"call stream\(\)"):
        model.run(tokens=[1])


def test_a_bundle_without_stream_engines_has_no_streams(bundle: Path) -> None:
    with pytest.raises(UsageError, match="no stream engine of the budget 'k8'"):
        runtime.load(bundle).stream()


def test_several_streams_of_one_model_do_not_disturb_each_other(opened: Opened) -> None:
    model = opened(WINDOW)
    inputs = [data(WINDOW, seed=seed) for seed in (1, 2)]
    with model.stream() as one, model.stream() as other:
        for t in range(TOTAL):
            got = [stream.push(tokens[:, t]) for stream, tokens in zip((one, other), inputs, strict=True)]
    for value, tokens in zip(got, inputs, strict=True):
        assert close_to(value, oracle(WINDOW, tokens, [8] * TOTAL)[0, -1])


def test_ten_thousand_steps_allocate_nothing_that_stays(opened: Opened) -> None:
    with opened(ANCHORED).stream() as stream:
        token = np.array([3])
        for _ in range(200):
            stream.push(token)
        tracemalloc.start()
        try:
            start, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(10_000):
                stream.push(token)
            end, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert end - start < 2048  # interned integers and the like
    assert peak - start < 64 * 1024  # the copies of one push with an anchor


def test_engines_that_claim_one_state_and_differ_are_refused(tmp_path: Path) -> None:
    root = write_stream_bundle(tmp_path / "bundle")
    manifest = runtime.read_manifest(root).to_json()
    other = write_stream_bundle(tmp_path / "other", Tiny(length=10))
    longer = runtime.read_manifest(other).to_json()
    manifest["engines"][3]["stream"]["length"] = 10
    with pytest.raises(BundleError, match="claim one state"):
        runtime.Model(root, runtime.Manifest.from_json(manifest), runtime.Manifest.from_json(manifest).engines[2]).stream()
    longer["engines"][2]["inputs"] = longer["engines"][2]["inputs"][1:]
    with pytest.raises(BundleError):
        runtime.Model(other, runtime.Manifest.from_json(longer), runtime.Manifest.from_json(longer).engines[2]).stream()
