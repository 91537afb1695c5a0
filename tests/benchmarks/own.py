"""Opening our own contenders in a worker: engines, streams and floors."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from tests.benchmarks import engines
from tests.benchmarks.contender import FLOOR, OURS, Contender, Opened, Setting


def open_sequence(_: Contender, setting: Setting) -> Opened:
    """The sequence engine as `runtime.open_session` opens it."""
    call = engines.open_sequence(setting.ours, setting.budget, setting.threads, setting.inputs())
    return Opened(call, lambda: call()["logits"], _settings(setting, f"k{setting.budget}-sequence"))


def open_push(_: Contender, setting: Setting) -> Opened:
    """`Stream.push` of one token, in a stream that ends at the trained length (no ring)."""
    tokens = setting.inputs()["tokens"][0]
    stream = engines.open_stream(setting.ours, setting.budget, setting.threads, len(tokens))
    pushed = [[int(token)] for token in tokens]

    def every_step() -> np.ndarray:
        stream.state.reset()
        return np.array([stream.push(token) for token in pushed])

    def call() -> object:
        if stream.position == len(tokens):
            stream.state.reset()
        return stream.push(pushed[0])

    settings = _settings(setting, f"k{setting.budget}-stream-1") | {"max_length": str(len(tokens))}
    return Opened(call, every_step, settings, stream.state.reset)


def open_push_past(_: Contender, setting: Setting) -> Opened:
    """The same in a stream that goes on past the trained length: with the ring, and the state made anew every L/4 tokens."""
    tokens = setting.inputs()["tokens"][0]
    stream = engines.open_stream(setting.ours, setting.budget, setting.threads, None)
    stream.push(np.concatenate([tokens, tokens[: len(tokens) // 8]]))
    past, first = stream.state.checkpoint(), [int(tokens[0])]
    settings = _settings(setting, f"k{setting.budget}-stream-1") | {"position": str(stream.position)}
    return Opened(lambda: stream.push(first), None, settings, lambda: stream.state.rollback(past))


def open_step(_: Contender, setting: Setting) -> Opened:
    """The one-token graph alone, between fixed arrays."""
    call = engines.bind_step(setting.ours, setting.budget, setting.threads)
    return Opened(call, None, _settings(setting, f"k{setting.budget}-stream-1"))


def open_long(contender: Contender, setting: Setting) -> Opened:
    """A prompt of `contender.mode` tokens pushed through a stream without an end; the last position's logits only."""
    stream = engines.open_stream(setting.ours, setting.budget, setting.threads, None)
    prompt = np.random.default_rng(0).integers(2, 258, int(contender.mode))

    def call() -> object:
        stream.state.reset()
        return stream.push(prompt)

    return Opened(call, None, _settings(setting, "") | {"chunks": ", ".join(map(str, stream.chunks))})


def open_floor(contender: Contender, setting: Setting) -> Opened:
    """The floor of the engine k{budget}-`spelling`."""
    id = f"k{setting.budget}-{contender.spelling}"
    call, products = engines.open_floor(setting.ours, id, setting.threads)
    return Opened(call, None, _settings(setting, "") | {"products": str(products)})


OWN: dict[tuple[str, str], Callable[[Contender, Setting], Opened]] = {
    (OURS, "sequence"): open_sequence,
    (OURS, "push"): open_push,
    (OURS, "push-past-L"): open_push_past,
    (OURS, "step-graph"): open_step,
    (OURS, "prompt"): open_long,
    (FLOOR, "sequence"): open_floor,
    (FLOOR, "stream-1"): open_floor,
}


def _settings(setting: Setting, engine: str) -> dict[str, str]:
    lowering = json.loads((setting.ours / engines.RECORD).read_text())["lowerings"].get(engine)
    return {"threads": str(setting.threads)} | ({"lowering": lowering} if lowering else {})
