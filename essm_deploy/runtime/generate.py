"""Text from a byte-level language model, on top of a stream.

Ids: 0 is PAD, 1 is BOS, a byte b is b + 2. A text begins with BOS; PAD and BOS are never generated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.sampling import Sampling, bits, softmax_parts
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.tensors import Array

BOS = 1
FIRST_BYTE = 2
_SCORED = 1024  # positions whose logits are held at once while a prompt is scored


@dataclass
class Statistics:
    """How a generation went, up to now. Rates are bytes per second; bits per byte are the model's own, at temperature 1.

    `stopped` is "stop" or "length" once it is over, and None before.
    """

    prompt_bytes: int = 0
    new_bytes: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prompt_bits: float = 0.0
    generated_bits: float = 0.0
    stopped: str | None = None

    @property
    def prefill_rate(self) -> float | None:
        """Bytes of the prompt per second; None without a prompt."""
        return self.prompt_bytes / self.prefill_seconds if self.prompt_bytes and self.prefill_seconds else None

    @property
    def decode_rate(self) -> float | None:
        """New bytes per second, sampling included; None if there are none."""
        return self.new_bytes / self.decode_seconds if self.new_bytes and self.decode_seconds else None

    @property
    def prompt_bits_per_byte(self) -> float | None:
        """Mean bits of the prompt's bytes; None if it is empty or was not scored."""
        return self.prompt_bits / self.prompt_bytes if self.prompt_bytes and self.prompt_bits else None

    @property
    def generated_bits_per_byte(self) -> float | None:
        """Mean bits of the new bytes; None if there are none."""
        return self.generated_bits / self.new_bytes if self.new_bytes else None


class Generation:
    """The bytes to come, as an iterator of non-empty pieces, and `statistics`. Made by `generate`."""

    def __init__(self, pieces: Iterator[bytes], statistics: Statistics) -> None:
        self.statistics = statistics
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


def generate(
    stream: Stream,
    prompt: bytes,
    max_new_bytes: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
    stop: Sequence[bytes] = (),
    score_prompt: bool = True,
) -> Generation:
    """Continue `prompt` by up to `max_new_bytes` bytes; the same seed gives the same bytes.

    A stream at position 0 is given BOS first; one that holds text already goes on from it, and then needs a prompt. The
    text ends before a token of `stop_ids`, and before any of the byte sequences `stop`; neither is part of it. Raises
    InputError at once for what cannot be generated, a prompt with bytes outside the vocabulary among it; while iterating,
    what `Stream.push` raises.
    """
    sampling = Sampling(temperature, top_k, top_p)
    if isinstance(max_new_bytes, bool) or not isinstance(max_new_bytes, int) or max_new_bytes < 1:
        raise InputError(f"max_new_bytes is {max_new_bytes!r}, expected a whole number of at least 1")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"the seed is {seed!r}, expected a whole number of at least 0")
    if stream.takes != "tokens" or not stream.answers_everywhere:
        raise InputError("the stream is no language model's: text needs a model over bytes")
    if not all(stop):
        raise InputError("a stop text is empty: expected at least one byte")
    tokens = _tokens(stream, prompt)
    end = stream.position + len(tokens) + max_new_bytes - 1  # the last new byte is not pushed
    if stream.bound is not None and end > stream.bound:
        raise InputError(f"prompt and new bytes take {end} tokens, the stream ends at {stream.bound}: ask for fewer")
    stream.prepare()
    statistics = Statistics(prompt_bytes=len(prompt))
    writer = _Writer(stream, sampling, np.random.default_rng(seed), frozenset(stop_ids), tuple(stop), statistics)
    return Generation(writer.pieces(tokens, max_new_bytes, score_prompt), statistics)


def _tokens(stream: Stream, prompt: bytes) -> Array:
    """The ids to prefill with. InputError names a byte that the vocabulary lacks."""
    values = np.frombuffer(prompt, np.uint8).astype(np.int64) + FIRST_BYTE
    outside = np.flatnonzero(values >= stream.outputs)
    if outside.size:
        at = int(outside[0])
        raise InputError(f"the prompt has the byte 0x{prompt[at]:02x} at {at}, outside the model's {stream.outputs} ids")
    if stream.position:
        if not prompt:
            raise InputError("the prompt is empty and the stream holds text already: reset it, or give a prompt")
        return values
    return np.concatenate(([BOS], values))


@dataclass
class _Writer:
    stream: Stream
    sampling: Sampling
    rng: np.random.Generator
    stop_ids: frozenset[int]
    stop: tuple[bytes, ...]
    statistics: Statistics

    def pieces(self, tokens: Array, most: int, score: bool) -> Iterator[bytes]:
        """Prefill, then sample, holding back what may be the beginning of a stop text."""
        start = time.perf_counter()
        logits = self._prefill(tokens, score)
        self.statistics.prefill_seconds = time.perf_counter() - start
        held = b""
        for byte in self._sampled(logits, most):
            held += byte
            cut = self._stop_at(held)
            if cut is not None:
                self.statistics.stopped = "stop"
                held = held[:cut]
                break
            free = len(held) - self._undecided(held)
            if free:
                yield held[:free]
                held = held[free:]
        self.statistics.stopped = self.statistics.stopped or "length"
        if held:
            yield held

    def _prefill(self, tokens: Array, score: bool) -> Array:
        """The logits after the last token; with `score`, the bits of the prompt, a block of positions at a time."""
        if not score:
            return self.stream.push(tokens)
        largest = self.stream.chunks[0]
        block = largest * max(1, _SCORED // largest)
        for at in range(0, len(tokens), block):
            rows = self.stream.push(tokens[at : at + block], all_positions=True)
            following = tokens[at + 1 : at + block + 1]
            self.statistics.prompt_bits += bits(rows[: len(following)], following)
        return np.asarray(rows[-1])

    def _sampled(self, logits: Array, most: int) -> Iterator[bytes]:
        """New bytes, one at a time, until a stop id or `most` of them. The last one is pushed only if another is wanted."""
        token, statistics = np.empty(1, np.int64), self.statistics
        for count in range(most):
            start = time.perf_counter()
            if count:
                logits = self.stream.push(token)
            shifted, weights, total = softmax_parts(logits)
            chosen = FIRST_BYTE + self.sampling.choose(shifted[FIRST_BYTE:], weights[FIRST_BYTE:], self.rng)
            if chosen in self.stop_ids:
                statistics.stopped = "stop"
                return
            token[0] = chosen
            statistics.generated_bits += (math.log(total) - shifted[chosen]) / math.log(2)
            statistics.new_bytes += 1
            statistics.decode_seconds += time.perf_counter() - start
            yield bytes((chosen - FIRST_BYTE,))

    def _stop_at(self, held: bytes) -> int | None:
        """Where a stop text begins in what was held back."""
        found = [at for text in self.stop if (at := held.find(text)) >= 0]
        return min(found, default=None)

    def _undecided(self, held: bytes) -> int:
        """How many of the last bytes may yet become a stop text."""
        longest = 0
        for text in self.stop:
            longest = max([longest, *(n for n in range(1, len(text)) if held.endswith(text[:n]))])
        return longest
