"""Reading clips: what is in the file comes out, and anything else is one InputError."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essm_deploy.errors import InputError
from essm_deploy.frontend import audio, read_audio

SAMPLES = np.round(np.random.default_rng(0).uniform(-0.9, 0.9, 320) * 128) / 128  # 8 bits hold them exactly


def wav_bytes(samples: np.ndarray, *, width: int = 2, rate: int = 16000, channels: int = 1) -> bytes:
    if width == 1:
        raw = (samples * 128 + 128).astype(np.uint8).tobytes()
    else:
        scaled = (samples * 2.0 ** (8 * width - 1)).astype("<i8")
        raw = scaled.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    stream = io.BytesIO()
    with wave.open(stream, "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(width)
        clip.setframerate(rate)
        clip.writeframes(raw)
    return stream.getvalue()


def npy_bytes(array: np.ndarray, **options: bool) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_every_width_comes_out_exactly(width: int, tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    path.write_bytes(wav_bytes(SAMPLES, width=width))
    read = read_audio(path, 16000)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, SAMPLES.astype(np.float32))


def test_a_stream_and_a_string_path_are_read_like_a_path(tmp_path: Path) -> None:
    data = wav_bytes(SAMPLES)
    (tmp_path / "clip").write_bytes(data)
    np.testing.assert_array_equal(read_audio(io.BytesIO(data), 16000), read_audio(str(tmp_path / "clip"), 16000))


def test_flac_is_read_like_the_wav_it_was_made_from() -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, SAMPLES, 16000, format="FLAC", subtype="PCM_16")
    np.testing.assert_array_equal(read_audio(io.BytesIO(stream.getvalue()), 16000), SAMPLES.astype(np.float32))
    with pytest.raises(InputError, match="sampled at 16000 Hz"):
        read_audio(io.BytesIO(stream.getvalue()), 8000)
    with pytest.raises(InputError, match="flac"):
        read_audio(io.BytesIO(stream.getvalue()[:60]), 16000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_npy_arrays_are_read(dtype: type) -> None:
    array = (SAMPLES * 32768).astype(dtype) if dtype is np.int16 else SAMPLES.astype(dtype)
    np.testing.assert_array_equal(read_audio(io.BytesIO(npy_bytes(array)), 16000), SAMPLES.astype(np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"ID3\x03 an mp3", "neither wav, flac nor npy"),
        (b"RIFF", "not a readable wav"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "not a readable wav"),
        (wav_bytes(SAMPLES, rate=8000), "sampled at 8000 Hz; expected 16000 Hz"),
        (wav_bytes(SAMPLES, channels=2), "has 2 channels; expected mono"),
        (wav_bytes(SAMPLES[:0]), "holds no samples"),
        (wav_bytes(SAMPLES)[:-100], "truncated"),
        (wav_bytes(SAMPLES)[:20] + struct.pack("<H", 3) + wav_bytes(SAMPLES)[22:], "unknown format: 3"),
        (npy_bytes(np.zeros((2, 5))), "1-D array"),
        (npy_bytes(np.zeros(5, np.int64)), "int64"),
        (npy_bytes(np.array([0.0, np.nan])), "finite"),
        (npy_bytes(np.array([0.0, 20000.0])), r"within \[-1, 1\]"),
        (npy_bytes(np.array([0.0, 1e300])), r"within \[-1, 1\]"),
        (npy_bytes(np.zeros(0)), "holds no samples"),
        (npy_bytes(np.zeros(50))[:-8], "not a readable npy"),
        (npy_bytes(np.array([{}], dtype=object), allow_pickle=True), "not a readable npy"),
    ],
)
def test_what_is_not_a_mono_clip_at_the_rate_is_one_line(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_audio(io.BytesIO(data), 16000)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.wav: cannot be read"):
        read_audio(tmp_path / "nowhere.wav", 16000)
    with pytest.raises(InputError, match="cannot be read"):
        read_audio(tmp_path, 16000)


def test_a_huge_file_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_BYTES", 600)
    with pytest.raises(InputError, match="larger than"):
        read_audio(io.BytesIO(wav_bytes(SAMPLES)), 16000)


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """The original with some bytes replaced, mostly in its header, and perhaps cut short."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 6))):
        limit = draw(st.sampled_from([64, len(data)]))
        data[draw(st.integers(0, min(limit, len(data)) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


def check_reads_or_refuses(data: bytes) -> None:
    try:
        samples = read_audio(io.BytesIO(data), 16000)
    except InputError:
        return
    assert samples.ndim == 1
    assert samples.size
    assert np.abs(samples).max() <= 1.0


@settings(max_examples=400, deadline=None)
@given(mutated(wav_bytes(SAMPLES)))
def test_a_damaged_wav_is_read_or_refused(data: bytes) -> None:
    check_reads_or_refuses(data)


@settings(max_examples=400, deadline=None)
@given(mutated(npy_bytes(SAMPLES)))
def test_a_damaged_npy_is_read_or_refused(data: bytes) -> None:
    check_reads_or_refuses(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200).map(lambda tail: b"RIFF" + tail))
def test_noise_behind_a_magic_number_is_read_or_refused(data: bytes) -> None:
    check_reads_or_refuses(data)
