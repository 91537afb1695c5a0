"""Streams on a GPU: the same answers as on the host, the state stays on the device, and nothing that goes wrong loses it.

The GPU is imagined (see fake_gpu.py); every kind of stream is pushed through the runner that a real one gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import runtime
from essm_deploy.errors import EssmError
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine, Manifest
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.stream_select import stream_engine
from tests.runtime.fake_gpu import FakeCuda, FakeTensorRt, as_tensorrt, graphs_below, install
from tests.runtime.streams import ALL, FIR, NAMES, TOTAL, WINDOW, Tiny, assert_same, close_to, data
from tests.runtime.test_stream_failures import failing_calls


class Gpu:
    """A bundle's streams on the imaginary device; `refused` engines stay on the host."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, graph: bool = False, refused: str = "none") -> None:
        self.manifest: Manifest = runtime.read_manifest(root)
        self.api = FakeCuda()
        execution = {"cuda_graph": graph}
        self.engines: list[Engine] = [
            engine if refused in engine.id else as_tensorrt(engine, root, execution=execution)
            for engine in self.manifest.engines
        ]
        moved = [engine for engine in self.engines if engine.backend != "onnxruntime"]
        self.module = FakeTensorRt(graphs_below(self.api, root, moved))
        install(monkeypatch, self.api, self.module)
        self.pool = EnginePool(root, self.engines, budgets=self.manifest.budgets, model=self.manifest.model.hash)

    def stream(self, batch: int = 1, budget: str = "k8", **options: Any) -> Stream:
        manifest = replace(self.manifest, engines=tuple(self.engines))
        return Stream(self.pool, stream_engine(manifest, budget, batch), batch=batch, **options)


Opened = Callable[..., Gpu]
Host = Callable[[Tiny], runtime.Model]


@pytest.fixture
def gpu(opened: Host, monkeypatch: pytest.MonkeyPatch) -> Opened:
    return lambda tiny, **options: Gpu(opened(tiny).root, monkeypatch, **options)


@pytest.mark.parametrize("graph", [False, True], ids=["enqueued", "captured"])
@pytest.mark.parametrize("tiny", ALL, ids=NAMES)
def test_every_kind_of_stream_answers_as_on_the_host(gpu: Opened, opened: Host, tiny: Tiny, graph: bool) -> None:
    there, inputs = gpu(tiny, graph=graph), data(tiny)
    with there.stream(tiny.batch) as ours, opened(tiny).stream(tiny.batch) as theirs:
        at = 0
        for size in (1, 1, 1, 4, 1, 9, 2, 1, 1, 5):
            piece = inputs[:, at : at + size]
            np.testing.assert_array_equal(ours.push(piece), theirs.push(piece))
            at += size
        assert_same(ours.state.checkpoint(), theirs.state.checkpoint())
    captured = {engine.entry.id: engine.enqueued for engine in there.module.opened}
    assert there.api.calls.get("cudaGraphLaunch", 0) > 0 if graph else captured
    assert graph or "cudaGraphLaunch" not in there.api.calls


def test_steps_move_no_state_between_host_and_device(gpu: Opened) -> None:
    there, tokens = gpu(FIR), data(FIR)
    with there.stream(max_length=FIR.length) as stream:
        stream.push(tokens[:, :1])
        before = dict(there.api.copied)
        for at in range(1, 6):
            stream.push(tokens[:, at : at + 1])
        assert there.api.copied[1] - before[1] == 5 * 8  # the token
        assert there.api.copied[2] - before[2] == 5 * 4 * FIR.vocab  # the logits
        sessions = [there.pool.session(engine.id) for engine in there.engines if engine.id == "k8-stream-1"]
        assert sessions[0].execution["state_on_device"]  # type: ignore[attr-defined]
        stream.state.checkpoint()
        downloaded = there.api.copied[2]
        stream.state.checkpoint()
        assert there.api.copied[2] == downloaded  # the host has it already


def test_two_sets_swap_and_no_engine_reads_where_it_writes(gpu: Opened) -> None:
    there, tokens = gpu(WINDOW), data(WINDOW)
    with there.stream() as stream:
        for at in range(4):
            stream.push(tokens[:, at : at + 1])
            for engine in there.module.opened:
                read = {engine.addresses[info.name] for info in engine.entry.inputs}
                written = {engine.addresses[info.name] for info in engine.entry.outputs}
                assert not read & written


def test_engines_of_all_chunks_and_budgets_share_the_state_on_the_device(gpu: Opened, opened: Host) -> None:
    there, tokens = gpu(WINDOW), data(WINDOW)
    with there.stream() as ours, opened(WINDOW).stream() as theirs:
        for at, budget in enumerate((8, 2, 2, 8, 8)):
            ours.budget = theirs.budget = budget
            piece = tokens[:, 5 * at : 5 * at + 5]  # a chunk of four and one of one
            np.testing.assert_array_equal(ours.push(piece), theirs.push(piece))
        uploaded = there.api.copied[1]
        ours.budget = 2
        ours.push(tokens[:, 25:26])
        assert there.api.copied[1] - uploaded == 8 + 4 * 2 * 3  # the token and what leaves the ring, no state


@pytest.mark.parametrize("refused", ["stream-4", "stream-1", "anchor"])
def test_an_engine_on_the_host_and_one_on_the_device_take_turns(gpu: Opened, opened: Host, refused: str) -> None:
    tiny = Tiny(anchor_every=3)
    there, tokens = gpu(tiny, refused=refused), data(tiny)
    with there.stream() as ours, opened(tiny).stream() as theirs:
        for at in range(0, 30, 5):
            piece = tokens[:, at : at + 5]
            np.testing.assert_array_equal(ours.push(piece), theirs.push(piece))


@pytest.mark.parametrize("graph", [False, True], ids=["enqueued", "captured"])
@pytest.mark.parametrize("tiny", ALL, ids=NAMES)
def test_snapshots_come_back_and_go_on_on_either_side(
    gpu: Opened, opened: Host, tmp_path: Path, tiny: Tiny, graph: bool
) -> None:
    there, inputs = gpu(tiny, graph=graph), data(tiny)
    with there.stream(tiny.batch) as ours, opened(tiny).stream(tiny.batch) as theirs:
        ours.push(inputs[:, :13])
        theirs.push(inputs[:, :13])
        snapshot = ours.state.checkpoint()
        assert_same(snapshot, theirs.state.checkpoint())
        wanted = [ours.push(inputs[:, at : at + 1]) for at in range(13, 20)]
        ours.state.rollback(snapshot)
        theirs.state.rollback(snapshot)
        for at, logits in enumerate(wanted, 13):
            np.testing.assert_array_equal(ours.push(inputs[:, at : at + 1]), logits)
            np.testing.assert_array_equal(theirs.push(inputs[:, at : at + 1]), logits)
        ours.state.save(tmp_path / "state.npz")
        ours.state.reset()
        fresh = ours.push(inputs[:, :1])
        ours.state.load(tmp_path / "state.npz")
        np.testing.assert_array_equal(ours.push(inputs[:, 20:25]), theirs.push(inputs[:, 20:25]))
        ours.state.reset()
        np.testing.assert_array_equal(ours.push(inputs[:, :1]), fresh)


@pytest.mark.parametrize("failing", ["cudaMemcpyAsync", "cudaStreamSynchronize", "enqueue"])
@pytest.mark.parametrize("at", [0, 12])
@pytest.mark.parametrize("size", [1, 9])
def test_a_push_that_fails_on_the_device_leaves_the_stream_as_it_was(
    gpu: Opened, monkeypatch: pytest.MonkeyPatch, failing: str, at: int, size: int
) -> None:
    there, tokens = gpu(WINDOW), data(WINDOW)
    with there.stream() as stream:
        if at:
            stream.push(tokens[:, :at])
        wanted = stream.state.checkpoint()
        stream.prepare()
        with monkeypatch.context() as patch:
            if failing == "enqueue":
                for engine in there.module.opened:
                    patch.setattr(engine, "execute_async_v3", lambda stream: False)
            else:
                there.api.failing = failing
            with pytest.raises(EssmError):
                stream.push(tokens[:, at : at + size])
            there.api.failing = ""
        there.api.pending.clear()
        assert_same(stream.state.checkpoint(), wanted)
        assert stream.push(tokens[:, at : at + size]).shape == (1, WINDOW.vocab)


@pytest.mark.parametrize("refused", ["none", "stream-1"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_interrupt_behind_a_call_takes_back_what_it_wrote(
    gpu: Opened, monkeypatch: pytest.MonkeyPatch, failing: int, refused: str
) -> None:
    there, tokens = gpu(WINDOW, refused=refused), data(WINDOW)
    with there.stream() as stream:
        stream.push(tokens[:, :5])
        wanted = stream.state.checkpoint()
        stream.state.rollback(wanted)
        with monkeypatch.context() as patch:
            failing_calls(patch, failing, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                stream.push(tokens[:, 5:14])
        assert_same(stream.state.checkpoint(), wanted)
        answer = stream.push(tokens[:, 5:14])
        stream.state.rollback(wanted)
        np.testing.assert_array_equal(stream.push(tokens[:, 5:14]), answer)


def test_the_middle_of_a_long_push_can_be_taken_back_on_the_device(gpu: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    there, tokens = gpu(WINDOW), data(WINDOW)
    with there.stream() as stream:
        stream.push(tokens[:, :5])
        wanted = stream.state.checkpoint()
        stream.push(tokens[:, 5:6])
        stream.state.rollback(wanted)
        stream.push(tokens[:, 5:9])  # the device has it again, and the host has not
        kept = stream.state.checkpoint()
        stream.push(tokens[:, 9:10])
        stream.state.rollback(kept)
        stream.push(tokens[:, 9:10])
        downloads = there.api.copied[2]
        third = [engine for engine in there.module.opened if engine.entry.chunk == 1]
        plain, count = third[0].execute_async_v3, [0]

        def fail_later(cuda_stream: int) -> bool:
            count[0] += 1
            return count[0] < 2 and plain(cuda_stream)

        with monkeypatch.context() as patch:
            patch.setattr(third[0], "execute_async_v3", fail_later)
            with pytest.raises(EssmError, match="failed to start"):
                stream.push(tokens[:, 10:16])  # four, one, and one that fails
        state_bytes = sum(array.nbytes for name, array in kept["arrays"].items() if name == "state")
        assert there.api.copied[3] == 2 * state_bytes  # kept, and given back, on the device
        assert there.api.copied[2] - downloads == 5 * 4 * (WINDOW.vocab + 2 * 3)  # what five tokens answer, and leave behind
        assert stream.position == 10
        whole = stream.push(tokens[:, 10:TOTAL])
        stream.state.rollback(kept)
        assert close_to(stream.push(tokens[:, 9:TOTAL]), whole)  # other chunks, which round otherwise


def test_closing_a_stream_gives_its_memory_back(gpu: Opened) -> None:
    there = gpu(WINDOW)
    with there.stream() as stream:
        stream.push(data(WINDOW)[:, :9])
        with_state = len(there.api.blocks)
    assert len(there.api.blocks) == with_state - 2
    with there.stream() as stream, there.stream() as other:  # two streams, two states, the same engines
        stream.push(data(WINDOW)[:, :9])
        other.push(data(WINDOW)[:, :2])
        assert stream.position != other.position
        np.testing.assert_array_equal(stream.push(data(WINDOW)[:, 9:10]), other.push(data(WINDOW)[:, 2:10]))
