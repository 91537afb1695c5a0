"""Augmentation of spoken words, in numpy, a batch at a time. Every draw comes from the generator that is passed in.

waveform   resampling (speed and pitch), time shift, level, coloured noise
spectrum   mel bands on a warped frequency axis (vocal tract length perturbation)
features   stripes of time and of bands set to the mean (SpecAugment), two clips mixed
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.frontend import LogMel, mel_triangles
from essm_deploy.frontend.logmel import mel_edges
from essm_train.settings import AugmentSettings

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
WARPS = 17  # steps between the narrowest and the widest warp


class Augment:
    """Turns waveforms into augmented features. The noise pool is drawn once from `seed`."""

    def __init__(self, settings: AugmentSettings, frontend: LogMel, seed: int) -> None:
        self.settings, self.frontend = settings, frontend
        self.noise = coloured_noise(np.random.default_rng([seed, 1]), 8, 20 * frontend.sample_rate)
        factors = np.linspace(1.0 - settings.warp, 1.0 + settings.warp, WARPS)
        self.triangles = np.stack([warped_triangles(frontend, factor) for factor in factors])

    def __call__(self, waveforms: Array, lengths: Ints, rng: np.random.Generator) -> tuple[Array, Ints]:
        """waveforms [B, n], lengths [B] in samples -> (features [B, frames, n_mels], valid frames [B])."""
        moved, lengths = self._move(waveforms, lengths, rng)
        noisy = self._add_noise(moved, rng)
        power = self.frontend.power(noisy)
        triangles = self.triangles[rng.integers(WARPS, size=len(power))]
        features = self._mask(self.frontend.normalise(self.frontend.log_bands(power, triangles)), rng)
        frames = np.minimum(self.frontend.frames, -(-lengths // self.frontend.hop))
        features[np.arange(features.shape[1]) >= frames[:, None]] = 0.0
        return features, frames

    def _move(self, waveforms: Array, lengths: Ints, rng: np.random.Generator) -> tuple[Array, Ints]:
        """Resample, shift and scale each clip; a full clip is mirrored at its ends, a short one stays short."""
        s, total = self.settings, self.frontend.clip_samples
        reach = round(s.shift_ms / 1000 * self.frontend.sample_rate)
        speed = np.exp(rng.uniform(-1, 1, len(waveforms)) * np.log1p(s.speed))
        shift = rng.uniform(-reach, reach, len(waveforms))
        gain = 10.0 ** (rng.uniform(-s.gain_db, s.gain_db, len(waveforms)) / 20)
        moved, ends = np.zeros((len(waveforms), total), np.float32), np.full(len(waveforms), total)
        for row, n in enumerate(lengths):
            # about the middle of the clip, so that a change of speed does not push the word out of it
            at = np.abs((np.arange(total) - total / 2 - shift[row]) * speed[row] + total / 2)
            if n < total:
                ends[row] = max(self.frontend.hop, int((at <= n - 1).sum()))
                at = at[: ends[row]]
            at = np.where(at > n - 1, np.maximum(0.0, 2.0 * (n - 1) - at), at)
            moved[row, : len(at)] = gain[row] * np.interp(at, np.arange(n), waveforms[row, :n])
        return moved, ends

    def _add_noise(self, waveforms: Array, rng: np.random.Generator) -> Array:
        s, (rows, n) = self.settings, waveforms.shape
        colour, start = rng.integers(len(self.noise), size=rows), rng.integers(self.noise.shape[1] - n, size=rows)
        snr = rng.uniform(s.noise_db[0], s.noise_db[1], rows)
        level = np.sqrt(np.mean(waveforms**2, axis=1)) * 10.0 ** (-snr / 20) * (rng.random(rows) < s.noise_chance)
        noise = np.stack([self.noise[c, i : i + n] for c, i in zip(colour.tolist(), start.tolist(), strict=True)])
        return waveforms + level[:, None].astype(np.float32) * noise

    def _mask(self, features: Array, rng: np.random.Generator) -> Array:
        s = self.settings
        for axis, count, width in ((1, s.time_masks, s.time_width), (2, s.band_masks, s.band_width)):
            size = features.shape[axis]
            for _ in range(count):
                widths = rng.integers(0, width + 1, size=(len(features), 1))
                first = rng.integers(0, size - widths + 1)
                hidden = (np.arange(size) >= first) & (np.arange(size) < first + widths)
                features *= ~(hidden[:, :, None] if axis == 1 else hidden[:, None, :])
        return features


def mix(features: Array, targets: Array, alpha: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Mixup: each clip with another one of the batch, features and target distributions in the same proportion."""
    share = rng.beta(alpha, alpha, len(features)).astype(np.float32)
    share = np.maximum(share, 1.0 - share)  # the clip itself stays the larger part, so its length stays the right one
    other = rng.permutation(len(features))
    mixed = share[:, None, None] * features + (1.0 - share)[:, None, None] * features[other]
    return mixed, share[:, None] * targets + (1.0 - share)[:, None] * targets[other]


def coloured_noise(rng: np.random.Generator, colours: int, n: int) -> Array:
    """Noise of unit power [colours, n] whose amplitude falls as f^-a, a evenly spaced from 0 (white) to 1 (brown)."""
    spectrum = np.fft.rfft(rng.standard_normal((colours, n)))
    slope = np.linspace(0.0, 1.0, colours)[:, None]
    spectrum *= np.maximum(np.arange(spectrum.shape[1]), n / 1000.0) ** -slope  # flat below 16 Hz at 16 kHz
    noise: npt.NDArray[Any] = np.fft.irfft(spectrum, n)
    return (noise / np.sqrt(np.mean(noise**2, axis=1, keepdims=True))).astype(np.float32)


def warped_triangles(frontend: LogMel, factor: float) -> Array:
    """Mel triangles on an axis stretched by `factor` up to 0.6 of Nyquist, and from there linearly to Nyquist itself."""
    nyquist = frontend.sample_rate / 2
    knee = 0.6 * nyquist
    edges = mel_edges(frontend.n_mels, frontend.f_min, frontend.f_max)
    upper = factor * knee + (edges - knee) * (nyquist - factor * knee) / (nyquist - knee)
    return mel_triangles(np.where(edges <= knee, factor * edges, upper), frontend.n_fft, frontend.sample_rate)
