"""The baseline of the language model: bytes predicted from the few before them by counting, smoothed as Witten and Bell did.

    p_n(c | h) = (N(h c) + T(h) p_{n-1}(c | h')) / (N(h) + T(h))         p_{-1} = 1/256

h is the last n bytes, h' the last n - 1, N counts in the training bytes, T(h) the distinct bytes that follow h there
(Witten and Bell 1991, method C, interpolated). It beats add-one smoothing by a lot, which makes it the harder baseline.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from essm_train.tasks.text import Bytes

MAX_ORDER = 7  # a context and the byte after it as one 64-bit number

Keys = npt.NDArray[np.uint64]


def markov_bits_per_byte(train: Bytes, held_out: Bytes, order: int = 3) -> float:
    """-(1 / n) sum log2 p over the held-out bytes, which are read as one stream. `order` is the bytes of context, 0..7."""
    if not 0 <= order <= MAX_ORDER:
        raise ValueError(f"order {order}; expected 0..{MAX_ORDER}")
    chance = np.full(len(held_out), 1 / 256)
    for n in range(order + 1):
        chance[n:] = _refine(chance[n:], contexts(train, n), train[n:], contexts(held_out, n), held_out[n:])
    return float(-np.log2(chance).sum() / len(held_out))


def add_one_bits_per_byte(train: Bytes, held_out: Bytes, order: int = 3) -> float:
    """The same with p(c | h) = (N(h c) + 1) / (N(h) + 256) and no shorter contexts, over the bytes that have a whole one."""
    context, wanted = contexts(held_out, order), contexts(train, order)
    pairs = _lookup(_joined(wanted, train[order:]), _joined(context, held_out[order:]))
    chance = (pairs + 1) / (_lookup(wanted, context) + 256)
    return float(-np.log2(chance).mean())


def contexts(data: Bytes, order: int) -> Keys:
    """The `order` bytes before each byte that has so many, as one number: [len(data) - order]."""
    keys = np.zeros(max(0, len(data) - order), dtype=np.uint64)
    for i in range(order):
        keys = _joined(keys, data[i : i + len(keys)])
    return keys


def _refine(lower: npt.NDArray[np.float64], seen: Keys, after: Bytes, context: Keys, byte: Bytes) -> npt.NDArray[np.float64]:
    """One order more: `lower` are the shorter context's chances of the held-out bytes."""
    pairs = np.unique(_joined(seen, after))
    kinds = _lookup(pairs >> np.uint64(8), context)
    both = _lookup(_joined(seen, after), _joined(context, byte))
    total = _lookup(seen, context) + kinds
    refined: npt.NDArray[np.float64] = np.where(total > 0, (both + kinds * lower) / np.maximum(total, 1), lower)
    return refined


def _joined(keys: Keys, byte: Bytes) -> Keys:
    joined: Keys = (keys << np.uint64(8)) | byte.astype(np.uint64)
    return joined


def _lookup(counted: Keys, wanted: Keys) -> npt.NDArray[np.float64]:
    """How often each of `wanted` is in `counted`."""
    values, counts = np.unique(counted, return_counts=True)
    if len(values) == 0:
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    found: npt.NDArray[np.float64] = np.where(values[place] == wanted, counts[place], 0).astype(np.float64)
    return found
