"""Which engines of a bundle serve a stream."""

from __future__ import annotations

from essm_deploy.errors import BundleError, UsageError
from essm_deploy.runtime.engines import EnginePool, budget_id
from essm_deploy.runtime.manifest import Engine, Manifest
from essm_deploy.runtime.stream_layout import fixed_batch, read_layout


def stream_engine(manifest: Manifest, budget: int | str, batch: int = 1, *, first: Engine | None = None) -> Engine:
    """The stream engine to open for a budget: `first` if it is one, or else the bundle's first, of the batch if possible.

    Raises UsageError if there is none.
    """
    wanted = budget_id(manifest.budgets, budget)
    engines = [*([first] if first else []), *manifest.engines]
    fitting = [engine for engine in engines if engine.kind == "stream" and engine.budget == wanted]
    if not fitting:
        raise UsageError(f"the bundle has no stream engine of the budget {budget!r}: build one, or call run()")
    return next((engine for engine in fitting if fixed_batch(engine) in (None, batch)), fitting[0])


def companions(pool: EnginePool, engine: Engine, batch: int) -> dict[str, dict[int, Engine]]:
    """The engines that continue the state of `engine`, itself included, by budget and chunk length; of two alike the first.

    Raises BundleError if one claims to and has another layout.
    """
    layout, found = read_layout(engine, batch), {engine.budget: {engine.chunk or 1: engine}}
    for other in pool.engines.values():
        if other.stream is None or engine.stream is None or other.stream.state != engine.stream.state:
            continue
        if fixed_batch(other) not in (None, batch):
            continue
        if not layout.continues(read_layout(other, batch)):
            raise BundleError(
                f"engines {engine.id!r} and {other.id!r} claim one state and differ in it: build the bundle again"
            )
        found.setdefault(other.budget, {}).setdefault(other.chunk or 1, other)
    return found
