"""Text from a stream: which bytes come, when they stop, and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import essm_deploy.runtime as runtime
from essm_deploy.errors import EssmError, InputError
from essm_deploy.runtime.sampling import Sampling, bits, softmax_parts
from tests.runtime.streams import Tiny, oracle, write_stream_bundle

BYTES = Tiny(vocab=258, length=16, chunks=(1, 4))
PROMPT = "Ein Fluß".encode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> runtime.Model:
    return runtime.load(write_stream_bundle(tmp_path_factory.mktemp("text") / "bundle", BYTES), threads=1)


def ids(text: bytes) -> np.ndarray:
    return np.array([[1, *(byte + 2 for byte in text)]])


def text_of(model: runtime.Model, prompt: bytes = PROMPT, count: int = 30, **options: Any) -> bytes:
    with model.stream() as stream:
        return b"".join(runtime.generate(stream, prompt, count, **options))


def surprise(text: bytes) -> np.ndarray:
    """Bits of every byte of `text`, from the float64 oracle."""
    tokens = ids(text)
    logits = oracle(BYTES, tokens, [8] * tokens.shape[1])[0]
    logs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1, keepdims=True)
    return -logs[np.arange(len(text)), tokens[0, 1:]] / np.log(2)


def test_greedy_text_follows_the_largest_logit_of_a_byte(model: runtime.Model) -> None:
    text = text_of(model, temperature=0)
    for count in range(30):
        tokens = ids(PROMPT + text[:count])
        logits = oracle(BYTES, tokens, [8] * tokens.shape[1])[0, -1]
        assert text[count] == np.argmax(logits[2:])


def test_the_seed_decides_and_pieces_are_bytes_as_they_come(model: runtime.Model) -> None:
    assert text_of(model, seed=1) == text_of(model, seed=1)
    assert text_of(model, seed=1) != text_of(model, seed=2)
    assert text_of(model, seed=1, score_prompt=False) == text_of(model, seed=1)
    with model.stream() as stream:
        assert [len(piece) for piece in runtime.generate(stream, b"", 5)] == [1] * 5
        assert stream.position == 5  # BOS and four bytes: the fifth need not be pushed


def test_statistics_are_those_of_the_text(model: runtime.Model) -> None:
    long = PROMPT * 200  # beyond one block of scored positions
    with model.stream() as stream:
        generation = runtime.generate(stream, long, 20, seed=3)
        text = b"".join(generation)
    wanted, found = surprise(long + text), generation.statistics
    assert (found.prompt_bytes, found.new_bytes, found.stopped) == (len(long), 20, "length")
    assert found.prompt_bits_per_byte == pytest.approx(wanted[: len(long)].mean(), rel=1e-4)
    assert found.generated_bits_per_byte == pytest.approx(wanted[len(long) :].mean(), rel=1e-3)
    assert found.prefill_rate is not None
    assert found.decode_rate is not None
    assert found.prefill_rate > 0
    assert found.decode_rate > 0


def test_an_empty_prompt_begins_with_bos_and_has_no_statistics(model: runtime.Model) -> None:
    with model.stream() as stream:
        generation = runtime.generate(stream, b"", 3)
        assert generation.statistics.stopped is None
        assert len(b"".join(generation)) == 3
    statistics = generation.statistics
    assert (statistics.prefill_rate, statistics.prompt_bits_per_byte) == (None, None)


def test_a_text_ends_before_a_stop_id_and_before_a_stop_text(model: runtime.Model) -> None:
    text = text_of(model, seed=5, count=40)
    at = 17
    with model.stream() as stream:
        generation = runtime.generate(stream, PROMPT, 40, seed=5, stop_ids=[text[at] + 2])
        assert b"".join(generation) == text[: text.index(text[at])]
        assert generation.statistics.stopped == "stop"
    for length in (1, 2, 4):
        stop = text[at : at + length]
        with model.stream() as stream:
            generation = runtime.generate(stream, PROMPT, 40, seed=5, stop=[b"never to come", stop])
            assert b"".join(generation) == text[: text.index(stop)]
            assert generation.statistics.stopped == "stop"


def test_the_beginning_of_a_stop_text_that_does_not_come_is_not_lost(model: runtime.Model) -> None:
    text = text_of(model, seed=5, count=40)
    nearly = [text[at : at + 3] + bytes([255 - text[at + 3]]) for at in (0, 10, 30)]
    assert text_of(model, seed=5, count=40, stop=[*nearly, text[-2:] + b"beyond"]) == text


def test_a_stream_that_holds_text_goes_on_from_it(model: runtime.Model) -> None:
    with model.stream() as stream:
        stream.push(ids(PROMPT[:4])[0])
        text = b"".join(runtime.generate(stream, PROMPT[4:], 10, temperature=0))
        assert text == text_of(model, temperature=0, count=10)
        with pytest.raises(InputError, match="holds text already"):
            runtime.generate(stream, b"", 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "max_new_bytes is 0"),
        ({"count": -3}, "max_new_bytes is -3"),
        ({"count": True}, "max_new_bytes is True"),
        ({"seed": -1}, "seed is -1"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": [b""]}, "stop text is empty"),
    ],
)
def test_what_cannot_be_generated_is_said_at_once(model: runtime.Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        text_of(model, **options)


def test_a_prompt_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    ascii_only = runtime.load(write_stream_bundle(tmp_path / "ascii", Tiny(vocab=130)))
    with pytest.raises(InputError, match="byte 0xc3 at 7, outside the model's 130 ids"):
        text_of(ascii_only, PROMPT)
    assert text_of(ascii_only, b"~")


def test_a_stream_that_would_end_before_the_text_is_refused_at_once(model: runtime.Model) -> None:
    with model.stream(max_length=12) as stream:
        with pytest.raises(InputError, match="take 13 tokens, the stream ends at 12"):
            runtime.generate(stream, PROMPT, 4)
        assert len(b"".join(runtime.generate(stream, PROMPT, 3))) == 3


def test_a_classifier_generates_no_text(tmp_path: Path) -> None:
    root = write_stream_bundle(tmp_path / "bundle", Tiny(classifier=True))
    with pytest.raises(InputError, match="no language model"):
        text_of(runtime.load(root))


def test_sampling_takes_each_token_as_often_as_it_is_likely() -> None:
    shifted, weights, _ = softmax_parts(np.log(np.array([0.5, 0.3, 0.15, 0.05])))
    rng = np.random.default_rng(0)
    for sampling, wanted in (
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.7), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.2), [1, 0, 0, 0]),
        (Sampling(temperature=0.5), np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365),
        (Sampling(temperature=1e-300), [1, 0, 0, 0]),
        (Sampling(temperature=0), [1, 0, 0, 0]),
    ):
        counts = np.bincount([sampling.choose(shifted, weights, rng) for _ in range(4000)], minlength=4)
        np.testing.assert_allclose(counts / 4000, wanted, atol=0.03)  # four standard deviations


def test_bits_are_those_of_the_softmax_and_logits_must_be_finite() -> None:
    logits = np.array([[1000.0, 1001.0], [0.0, 0.0]])
    assert bits(logits[:1], np.array([0])) == pytest.approx(np.log2(1 + np.e))
    assert bits(logits, np.array([0, 1])) == pytest.approx(np.log2(1 + np.e) + 1)
    assert bits(logits[:0], np.array([], np.int64)) == 0
    for value in (np.nan, np.inf):
        with pytest.raises(EssmError, match="not finite"):
            softmax_parts(np.array([value, 0], np.float32))
