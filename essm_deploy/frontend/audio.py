"""Reading one mono clip: wav through the standard library, flac where soundfile is installed, .npy arrays.

The kind is told by the first bytes, never by the name. Nothing here resamples: a wrong rate is an error that says so.
"""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UnavailableError

MAX_BYTES = 64 << 20  # half an hour of 16 kHz 16-bit mono: far beyond a clip, small enough to hold

Array = npt.NDArray[np.float32]


def read_audio(source: str | Path | BinaryIO, sample_rate: int) -> Array:
    """Samples float32 [n], n >= 1, in [-1, 1], of a mono clip that was recorded at `sample_rate` Hz.

    Takes wav (PCM of 8, 16, 24 or 32 bits), flac, and .npy (1-D; float in [-1, 1] or int16; its rate is taken on trust).
    Raises InputError for anything else, and UnavailableError for flac without soundfile.
    """
    name, data = _read_bytes(source)
    if data[:4] == b"RIFF":
        samples = _wav(name, data, sample_rate)
    elif data[:4] == b"fLaC":
        samples = _flac(name, data, sample_rate)
    elif data[:6] == b"\x93NUMPY":
        samples = _npy(name, data)
    else:
        raise InputError(
            f"{name}: neither wav, flac nor npy (it begins with {data[:4]!r}); expected a mono clip at {sample_rate} Hz"
        )
    if samples.size == 0:
        raise InputError(f"{name}: holds no samples; expected a mono clip at {sample_rate} Hz")
    return samples


def _read_bytes(source: str | Path | BinaryIO) -> tuple[str, bytes]:
    if not isinstance(source, (str, Path)):
        return _bounded(str(getattr(source, "name", "input")), source)
    try:
        with Path(source).open("rb") as stream:
            return _bounded(str(source), stream)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); expected a wav, flac or npy file") from error


def _bounded(name: str, stream: BinaryIO) -> tuple[str, bytes]:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES >> 20} MiB; expected one short clip")
    if not data:
        raise InputError(f"{name}: is empty; expected a wav, flac or npy clip")
    return name, data


def _wav(name: str, data: bytes, sample_rate: int) -> Array:
    try:
        with wave.open(io.BytesIO(data)) as clip:
            channels, width, rate, count = clip.getparams()[:4]
            _check_format(name, rate, channels, sample_rate)
            raw = clip.readframes(count)
    except (wave.Error, EOFError, struct.error, RuntimeError, ValueError, OverflowError) as error:
        reason = str(error) or "it ends too early"
        raise InputError(f"{name}: not a readable wav file ({reason}); expected PCM, mono, {sample_rate} Hz") from error
    if len(raw) != count * width:
        raise InputError(f"{name}: truncated: the header promises {count} samples, {len(raw) // width} are there")
    if width not in (1, 2, 3, 4):
        raise InputError(f"{name}: {8 * width}-bit samples; expected PCM of 8, 16, 24 or 32 bits")
    return _pcm(raw, width)


def _check_format(name: str, rate: int, channels: int, sample_rate: int) -> None:
    if channels != 1:
        raise InputError(f"{name}: has {channels} channels; expected mono: mix it down first")
    if rate != sample_rate:
        raise InputError(f"{name}: sampled at {rate} Hz; expected {sample_rate} Hz: resample it first")


def _pcm(raw: bytes, width: int) -> Array:
    """Little-endian PCM to [-1, 1): 8 bits are unsigned, wider ones are two's complement."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128.0) / 128.0
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (wide.reshape(-1).view("<i4") / 2.0**31).astype(np.float32)
    return (np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)).astype(np.float32)


def _flac(name: str, data: bytes, sample_rate: int) -> Array:
    try:
        import soundfile
    except ImportError as error:
        raise UnavailableError(
            f"{name}: is flac, which needs soundfile: pip install 'essm-deploy[audio]', or convert it to wav"
        ) from error
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise InputError(f"{name}: not a readable flac file ({error}); expected mono, {sample_rate} Hz") from error
    _check_format(name, rate, samples.shape[1], sample_rate)
    return np.ascontiguousarray(samples[:, 0])


def _npy(name: str, data: bytes) -> Array:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy's header parser raises whatever the bytes provoke, tokenizer errors included
        raise InputError(
            f"{name}: not a readable npy file ({type(error).__name__}); expected a 1-D float or int16 array"
        ) from error
    if array.ndim != 1 or not (array.dtype == np.int16 or np.issubdtype(array.dtype, np.floating)):
        found = f"{array.dtype} of shape {list(array.shape)}"
        raise InputError(f"{name}: holds {found}; expected a 1-D array, float in [-1, 1] or int16")
    if np.issubdtype(array.dtype, np.floating) and array.size and not _within_one(array):
        raise InputError(f"{name}: float samples must be finite and within [-1, 1]; scale them first")
    samples: Array = (array / 32768.0 if array.dtype == np.int16 else array).astype(np.float32)
    return samples


def _within_one(array: npt.NDArray[np.floating[Any]]) -> bool:
    return bool(np.isfinite(array).all() and np.abs(array).max() <= 1.0)
