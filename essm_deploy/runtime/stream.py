"""Streams: tokens or frames pushed as they come, one small state carried along, memory allocated once.

    with runtime.load("out/bytes").stream() as stream:
        logits = stream.push(prompt)          # any length; the compiled chunks serve it, largest first
        snapshot = stream.state.checkpoint()
        logits = stream.push([token])
        stream.budget = 4                     # the state goes on
        stream.state.rollback(snapshot)

A push is all or nothing: an error inside it, an interrupt included, leaves the stream as it was. A stream belongs to one
thread at a time; several streams of one model may run side by side.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from essm_deploy.errors import InputError, UsageError
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.scores import ranked
from essm_deploy.runtime.stream_buffers import StreamBuffers
from essm_deploy.runtime.stream_input import InputReader
from essm_deploy.runtime.stream_layout import read_layout
from essm_deploy.runtime.stream_runner import AnchorRunner, ChunkRunner
from essm_deploy.runtime.stream_schedule import Events, split
from essm_deploy.runtime.stream_select import companions
from essm_deploy.runtime.stream_state import StreamState
from essm_deploy.runtime.tensors import Array


class Stream:
    """One stream of `batch` sequences through the stream engines that share the state of `engine`.

    `max_length` bounds the tokens to come; at or below the trained length L no ring is allocated. What happens past L
    is the engine's `overflow`: "window" (every filter sees the last L tokens), "restart" (history is cut to L/2 where it
    reaches L), "refuse" (InputError). Raises InputError for a batch that was not compiled and lengths below 1, and
    BundleError where the engines do not fit together.
    """

    def __init__(self, pool: EnginePool, engine: Engine, *, batch: int = 1, max_length: int | None = None) -> None:
        for name, value in (("batch", batch), ("max_length", max_length)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(f"{name} is {value!r}, expected a whole number of at least 1")
        self._pool = pool
        self._layout = layout = read_layout(engine, batch)
        self._engines = companions(pool, engine, batch)
        bound = _bound(layout.info.length, layout.info.overflow, max_length)
        self._buffers = StreamBuffers(layout, with_ring=bound is None or bound > layout.info.length)
        self._anchor = pool.engines.get(layout.info.anchor or "") if self._buffers.ring else None
        self._events = Events(layout.info, bound, anchored=self._anchor is not None)
        self._anchor_runner: AnchorRunner | None = None
        self._reader = InputReader(layout.data)
        self._runners: dict[str, ChunkRunner] = {}
        self._state = StreamState(
            self._buffers, layout, model=pool.model, bound=bound, check=self._check_open, moved=self._moved
        )
        self._closed = False
        self._last: Array | None = None
        self._use(engine.budget)

    @property
    def budget(self) -> str:
        """The id of the budget in use. Assign 8 or "k8" to change it between two pushes; the state goes on."""
        return self._budget

    @budget.setter
    def budget(self, budget: int | str) -> None:
        self._check_open()
        wanted = self._pool.budget_id(budget)
        if wanted not in self._engines:
            have = ", ".join(self._engines)
            raise UsageError(f"no stream engine of the budget {budget!r} continues this state: there are {have}")
        self._use(wanted)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunk lengths that are compiled for the budget in use, largest first."""
        return self._sizes

    @property
    def position(self) -> int:
        """Tokens (or frames) so far."""
        return self._buffers.position

    @property
    def length(self) -> int:
        """L, the length that the model was trained for."""
        return self._layout.info.length

    @property
    def bound(self) -> int | None:
        """The position that the stream cannot pass; None if it may go on for ever."""
        return self._events.bound

    @property
    def takes(self) -> str:
        """What is pushed: "tokens" or "features"."""
        return self._layout.data.name

    @property
    def answers_everywhere(self) -> bool:
        """Whether there are logits at every position (a language model), so that `all_positions` may be asked for."""
        return self._layout.positions

    @property
    def outputs(self) -> int:
        """V, the size of the vocabulary, or the number of labels."""
        return self._layout.outputs

    @property
    def state(self) -> StreamState:
        """Saving, loading, resetting and rolling back; see StreamState."""
        self._check_open()
        return self._state

    def push(self, inputs: Any, all_positions: bool = False) -> Array:
        """Process the next n >= 1 tokens, whole numbers [n] or [B, n], or frames, float32 [n, F] or [B, n, F].

        Returns float32 logits [V] (or [B, V] for inputs with a batch axis): after the last token, for classifiers the mean
        over all tokens since the last reset included. With `all_positions` (language models) [n, V] or [B, n, V].
        Raises InputError for values that the model cannot take (NaN among them), for n that the compiled chunks do not
        add up to, past the stream's bound and after `close`; EssmError where the engine fails.
        """
        data, batched = self._reader.read(inputs)
        count = data.shape[1]
        runner = self._by_chunk.get(count)
        if runner is not None and not all_positions and self._buffers.position + count <= self._quiet:
            runner.data[...] = data
            runner.step()
            logits = self._answer(runner)
        else:
            self._check_open()
            logits = self._push_pieces(data, all_positions)
        return logits if batched else np.asarray(logits[0])

    def scores(self) -> list[list[dict[str, Any]]]:
        """A classifier's labels after the last push: for each sequence of the batch [{"label", "score"}], best first.

        Raises InputError before the first push and without labels.
        """
        labels = self._pool.labels
        if self._last is None or len(labels) != self._layout.outputs or self._layout.positions:
            raise InputError("there are no scores: the model has no labels, or nothing was pushed yet")
        return [ranked(row, labels) for row in self._last]

    def prepare(self) -> None:
        """Open all engines of the budget in use now, so that no later push has to."""
        self._check_open()
        for chunk in self._sizes:
            self._runner(chunk)

    def close(self) -> None:
        """Let go of the engines and the memory; whatever is asked of the stream from now on is an InputError."""
        self._closed = True
        self._runners = {}
        self._by_chunk: dict[int, ChunkRunner] = {}
        self._anchor_runner = self._last = None
        self._buffers.release()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _push_pieces(self, data: Array, all_positions: bool) -> Array:
        """Several chunks, or one with an event before or after it."""
        sizes = self._plan(data.shape[1], all_positions)
        every = np.empty((*data.shape[:2], self._layout.outputs), np.float32) if all_positions else None
        before, at = self._buffers.before(data.shape[1]), 0
        try:
            for size in sizes:
                runner = self._step(data[:, at : at + size])
                if every is not None:
                    every[:, at : at + size] = runner.logits
                at += size
        except BaseException:
            self._buffers.take_back(before)
            raise
        self._moved(forget=False)
        last = self._answer(runner)
        return last if every is None else every

    def _answer(self, runner: ChunkRunner) -> Array:
        """The last logits, as the caller's own; a classifier's are kept for `scores` too."""
        logits: Array = runner.last.copy()
        if not self._layout.positions:
            self._last = logits.copy()
        return logits

    def _plan(self, count: int, all_positions: bool) -> list[int]:
        """The chunks of the push; whatever is wrong with it is said before anything is touched."""
        bound, position = self._events.bound, self._buffers.position
        if all_positions and not self._layout.positions:
            raise InputError("the model answers for a whole chunk: all_positions is for language models")
        if bound is not None and position + count > bound:
            raise InputError(f"the stream ends at {bound} tokens: {position} are in, {count} more do not fit; reset it")
        return [size for piece in self._events.segments(position, count) for size in split(piece, self._sizes)]

    def _step(self, data: Array) -> ChunkRunner:
        runner = self._runner(data.shape[1])
        start = self._buffers.position
        if self._events.cut_due(start):
            self._cut()
        runner.data[...] = data
        runner.step()
        if self._events.anchor_due(start, self._buffers.position):
            self._reanchor()
        return runner

    def _cut(self) -> None:
        """Forget what is older than L/2 (or, at the first L/2, only start the spare)."""
        front, cut = self._buffers.edit(), self._layout.info.cut or 0
        if self._layout.info.restart == "zero":
            front["state"][:, :, : front["state"].shape[2] - cut] = 0  # rows are chronological, the newest last
            return
        if self._buffers.position >= self._layout.info.length:
            np.copyto(front["state"], front["spare"])
        front["spare"].fill(0)

    def _reanchor(self) -> None:
        if self._anchor_runner is None and self._anchor is not None and self._buffers.ring is not None:
            session = self._pool.session(self._anchor.id)
            self._anchor_runner = AnchorRunner(session, self._anchor, self._layout, self._buffers, self._buffers.ring)
        if self._anchor_runner is not None:
            self._anchor_runner.step()

    def _runner(self, chunk: int) -> ChunkRunner:
        """The runner of a chunk length of the budget in use, its engine opened at first use."""
        if chunk not in self._by_chunk:
            engine = self._engines[self._budget][chunk]
            if engine.id not in self._runners:
                session = self._pool.session(engine.id)
                self._runners[engine.id] = ChunkRunner(session, engine, self._layout, self._buffers)
            self._by_chunk[chunk] = self._runners[engine.id]
        return self._by_chunk[chunk]

    def _use(self, budget: str) -> None:
        self._budget = budget
        engines = self._engines[budget]
        self._sizes = tuple(sorted(engines, reverse=True))
        self._by_chunk = {chunk: self._runners[e.id] for chunk, e in engines.items() if e.id in self._runners}
        self._moved(forget=False)

    def _moved(self, *, forget: bool = True) -> None:
        """The position has changed other than by a quiet step; `forget`: the last answer belongs to another past."""
        self._quiet = self._events.quiet_until(self._buffers.position)
        if forget:
            self._last = None

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the stream is closed: open another one with Model.stream()")


def _bound(length: int, overflow: str, max_length: int | None) -> int | None:
    """The last position that the stream may reach, or None."""
    if overflow != "refuse":
        return max_length
    return length if max_length is None else min(length, max_length)
