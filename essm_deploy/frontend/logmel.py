"""Log-mel features: a waveform becomes one row of mel-band log energies per hop.

frames   x[t·hop : t·hop + window] of the clip, zero-padded behind its end to (frames - 1)·hop + window samples
power    |rfft(frame · hann, n_fft)|²                                        [frames, n_fft/2 + 1]
bands    power @ triangles.T, triangles equally spaced on the HTK mel scale   [frames, n_mels]
output   (ln(bands + floor) - mean) / std                                     mean and std per band, from the training set
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UsageError

Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating[Any]]

_COUNTS = ("sample_rate", "window", "hop", "n_fft", "n_mels", "clip_samples", "frames")
_REALS = ("f_min", "f_max", "floor")


def mel_edges(n_mels: int, f_min: float, f_max: float) -> npt.NDArray[np.float64]:
    """The n_mels + 2 corner frequencies in Hz, equally spaced in HTK mel: mel(f) = 2595 log10(1 + f/700)."""
    low, high = (2595.0 * math.log10(1.0 + f / 700.0) for f in (f_min, f_max))
    return np.asarray(700.0 * (10.0 ** (np.linspace(low, high, n_mels + 2) / 2595.0) - 1.0), dtype=np.float64)


def mel_triangles(edges: npt.NDArray[np.float64], n_fft: int, sample_rate: int) -> Array:
    """Triangular band filters [len(edges) - 2, n_fft/2 + 1] of peak 1; band m rises from edges[m] and ends at edges[m + 2]."""
    bins = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)


@dataclass(frozen=True)
class LogMel:
    """The front end of a speech model. Lengths are in samples unless they say frames; frequencies are in Hz.

    `mean` and `std` hold one number per mel band, or nothing (no normalisation). `floor` is added to the band energies of a
    waveform in [-1, 1) and sets what silence looks like. Raises UsageError where the numbers contradict each other.
    """

    sample_rate: int = 16000
    window: int = 400
    hop: int = 160
    n_fft: int = 512
    n_mels: int = 40
    f_min: float = 20.0
    f_max: float = 7600.0
    floor: float = 1e-3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clip_samples: int = 16000
    frames: int = 100

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise UsageError(f"log_mel front end: {problem}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LogMel:
        """Build from a checkpoint's `frontend` object. An unknown type or key is a UsageError, never ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        if config.get("type") != "log_mel":
            raise UsageError(f"front end type {config.get('type')!r} is unknown; this version has 'log_mel'")
        unknown = sorted(set(config) - known - {"type"})
        if unknown:
            raise UsageError(f"log_mel front end: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
        given = {key: value for key, value in config.items() if key != "type"}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        return cls(**values)

    def to_config(self) -> dict[str, Any]:
        """The JSON form that `from_config` reads back to an equal object."""
        values = dataclasses.asdict(self)
        return {"type": "log_mel", **values, "mean": list(self.mean), "std": list(self.std)}

    def __call__(self, waveform: FloatArray) -> tuple[Array, int]:
        """waveform [n] in [-1, 1), 1 <= n <= clip_samples -> (features float32 [frames, n_mels], valid frames ceil(n/hop)).

        Rows beyond the valid frames are zero. Raises InputError for an empty, too long, or non-1-D clip and for NaN.
        """
        samples = np.asarray(waveform)
        if samples.ndim != 1 or not 1 <= samples.size <= self.clip_samples:
            limit = f"1 to {self.clip_samples} samples ({self.clip_samples / self.sample_rate:g} s) in one dimension"
            raise InputError(f"clip of shape {list(samples.shape)}: the model takes {limit}; cut or split the clip")
        if not np.isfinite(samples).all():
            raise InputError("the clip holds NaN or infinite samples; expected finite values in [-1, 1)")
        length = min(self.frames, -(-samples.size // self.hop))
        features = self.normalise(self.log_bands(self.power(samples[None])))[0]
        features[length:] = 0.0
        return features, length

    def power(self, waveforms: FloatArray) -> Array:
        """Power spectra float32 [B, frames, n_fft/2 + 1] of waveforms [B, n], n <= clip_samples, zero-padded to the frames."""
        total = (self.frames - 1) * self.hop + self.window
        padded = np.zeros((len(waveforms), total), np.float32)
        padded[:, : min(total, waveforms.shape[1])] = waveforms[:, :total]
        framed = np.lib.stride_tricks.sliding_window_view(padded, self.window, axis=1)[:, :: self.hop]
        spectrum = np.fft.rfft(framed * self._hann, self.n_fft, axis=-1)
        power: Array = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        return power

    def log_bands(self, power: Array, triangles: Array | None = None) -> Array:
        """ln(band energy + floor) [..., n_mels] of power spectra [..., n_fft/2 + 1].

        Augmentation passes triangles of its own, [n_mels, n_fft/2 + 1] or one set for each clip, [B, n_mels, n_fft/2 + 1].
        """
        bands = power @ np.swapaxes(self.triangles if triangles is None else triangles, -1, -2)
        logs: Array = np.log(bands + np.float32(self.floor))
        return logs

    def normalise(self, bands: Array) -> Array:
        """(bands - mean) / std per mel band."""
        if not self.mean:
            return bands
        mean, std = (np.asarray(values, np.float32) for values in (self.mean, self.std))
        return np.asarray((bands - mean) / std, np.float32)

    @cached_property
    def triangles(self) -> Array:
        """The mel filters [n_mels, n_fft/2 + 1]."""
        return mel_triangles(mel_edges(self.n_mels, self.f_min, self.f_max), self.n_fft, self.sample_rate)

    @cached_property
    def _hann(self) -> Array:
        phase = 2.0 * math.pi * np.arange(self.window) / self.window  # periodic, as in a short-time Fourier transform
        hann: Array = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)
        return hann


def _problem(mel: LogMel) -> str | None:
    """What is wrong with the numbers, or None."""
    for name in _COUNTS:
        value = getattr(mel, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 24:
            return f"{name} is {value!r}; expected a positive integer"
    for name in _REALS:
        if not _is_real(getattr(mel, name)):
            return f"{name} is {getattr(mel, name)!r}; expected a finite number"
    if mel.n_fft < mel.window or not 0 <= mel.f_min < mel.f_max <= mel.sample_rate / 2 or mel.floor <= 0:
        return "expected n_fft >= window, 0 <= f_min < f_max <= sample_rate/2 and floor > 0"
    if mel.clip_samples > (mel.frames - 1) * mel.hop + mel.window:
        return f"{mel.frames} frames do not cover clip_samples {mel.clip_samples}"
    for name in ("mean", "std"):
        values = getattr(mel, name)
        if not isinstance(values, tuple) or len(values) not in (0, mel.n_mels) or not all(map(_is_real, values)):
            return f"{name} holds something else than {mel.n_mels} finite numbers"
    if len(mel.mean) != len(mel.std) or any(value <= 0 for value in mel.std):
        return "mean and std go together, and every std is above 0"
    return None


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
