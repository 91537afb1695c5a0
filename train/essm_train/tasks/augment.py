"""Augmentation of spoken words, in numpy, a batch at a time: first what chance decides of every clip, then the clips.

A process that builds some of a batch's clips makes the draws for all of them, so that each clip becomes what it would become
in one process.

waveform   resampling (speed and pitch), time shift, level, coloured noise
spectrum   mel bands on a warped frequency axis (vocal tract length perturbation)
features   stripes of time and of bands set to the mean (SpecAugment), two clips mixed
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.frontend import LogMel, mel_triangles
from essm_deploy.frontend.logmel import mel_edges
from essm_train.settings import AugmentSettings

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
WARPS = 17  # steps between the narrowest and the widest warp


@dataclass(frozen=True)
class Draws:
    """What chance decides of each clip of a batch: [B], and the hidden stripes [B, masks, 2] as [first, end)."""

    speed: Floats
    shift: Floats
    gain: Floats
    colour: Ints
    start: Ints
    noise: Floats
    warp: Ints
    times: Ints
    bands: Ints

    def of(self, rows: Ints) -> Draws:
        """Those of some clips."""
        return Draws(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


class Augment:
    """Turns waveforms into augmented features. The noise pool is drawn once from `seed`."""

    def __init__(self, settings: AugmentSettings, frontend: LogMel, seed: int) -> None:
        self.settings, self.frontend = settings, frontend
        self.noise = coloured_noise(np.random.default_rng([seed, 1]), 8, 20 * frontend.sample_rate)
        factors = np.linspace(1.0 - settings.warp, 1.0 + settings.warp, WARPS)
        self.triangles = np.stack([warped_triangles(frontend, factor) for factor in factors])

    def __call__(self, waveforms: Array, lengths: Ints, rng: np.random.Generator) -> tuple[Array, Ints]:
        """waveforms [B, n], lengths [B] in samples -> (features [B, frames, n_mels], valid frames [B])."""
        return self.apply(waveforms, lengths, self.draw(len(waveforms), rng))

    def draw(self, rows: int, rng: np.random.Generator) -> Draws:
        """For so many clips."""
        s, samples = self.settings, self.frontend.clip_samples
        reach = round(s.shift_ms / 1000 * self.frontend.sample_rate)
        speed = np.exp(rng.uniform(-1, 1, rows) * np.log1p(s.speed))
        shift = rng.uniform(-reach, reach, rows)
        gain = 10.0 ** (rng.uniform(-s.gain_db, s.gain_db, rows) / 20)
        colour, start = rng.integers(len(self.noise), size=rows), rng.integers(self.noise.shape[1] - samples, size=rows)
        snr = rng.uniform(s.noise_db[0], s.noise_db[1], rows)
        noise = 10.0 ** (-snr / 20) * (rng.random(rows) < s.noise_chance)
        warp = rng.integers(WARPS, size=rows)
        times = draw_stripes(rows, s.time_masks, s.time_width, self.frontend.frames, rng)
        bands = draw_stripes(rows, s.band_masks, s.band_width, self.frontend.n_mels, rng)
        return Draws(speed, shift, gain, colour, start, noise, warp, times, bands)

    def apply(self, waveforms: Array, lengths: Ints, draws: Draws) -> tuple[Array, Ints]:
        """The same with draws that were made before, one for each clip."""
        moved, lengths = self._move(waveforms, lengths, draws)
        power = self.frontend.power(self._add_noise(moved, draws))
        features = self.frontend.normalise(self.frontend.log_bands(power, self.triangles[draws.warp]))
        features *= ~hidden(draws.times, features.shape[1])[:, :, None]
        features *= ~hidden(draws.bands, features.shape[2])[:, None, :]
        frames = np.minimum(self.frontend.frames, -(-lengths // self.frontend.hop))
        features[np.arange(features.shape[1]) >= frames[:, None]] = 0.0
        return features, frames

    def _move(self, waveforms: Array, lengths: Ints, draws: Draws) -> tuple[Array, Ints]:
        """Resample, shift and scale each clip; a full clip is mirrored at its ends, a short one stays short."""
        total = self.frontend.clip_samples
        moved, ends = np.zeros((len(waveforms), total), np.float32), np.full(len(waveforms), total)
        for row, n in enumerate(lengths):
            # about the middle of the clip, so that a change of speed does not push the word out of it
            at = np.abs((np.arange(total) - total / 2 - draws.shift[row]) * draws.speed[row] + total / 2)
            if n < total:
                ends[row] = max(self.frontend.hop, int((at <= n - 1).sum()))
                at = at[: ends[row]]
            at = np.where(at > n - 1, np.maximum(0.0, 2.0 * (n - 1) - at), at)
            moved[row, : len(at)] = draws.gain[row] * np.interp(at, np.arange(n), waveforms[row, :n])
        return moved, ends

    def _add_noise(self, waveforms: Array, draws: Draws) -> Array:
        n = waveforms.shape[1]
        level = np.sqrt(np.mean(waveforms**2, axis=1)) * draws.noise
        places = zip(draws.colour.tolist(), draws.start.tolist(), strict=True)
        noise = np.stack([self.noise[c, i : i + n] for c, i in places])
        noisy: Array = waveforms + level[:, None].astype(np.float32) * noise
        return noisy


def draw_stripes(rows: int, count: int, width: int, size: int, rng: np.random.Generator) -> Ints:
    """[rows, count, 2]: `count` stripes of 0 to `width` steps, [first, end), anywhere among `size` steps."""
    stripes = np.zeros((rows, count, 2), np.int64)
    for i in range(count):
        widths = rng.integers(0, width + 1, size=rows)
        first = rng.integers(0, size - widths + 1)
        stripes[:, i] = np.stack([first, first + widths], axis=1)
    return stripes


def hidden(stripes: Ints, size: int) -> npt.NDArray[np.bool_]:
    """[rows, size]: whether a step lies in any of a row's stripes."""
    steps = np.arange(size)[:, None]
    within: npt.NDArray[np.bool_] = np.any((steps >= stripes[:, None, :, 0]) & (steps < stripes[:, None, :, 1]), axis=2)
    return within


def draw_mix(rows: int, alpha: float, rng: np.random.Generator) -> tuple[Array, Ints]:
    """Mixup: of each clip the share that it keeps [rows], and the clip that the rest of it comes from [rows]."""
    share = rng.beta(alpha, alpha, rows).astype(np.float32)
    share = np.maximum(share, 1.0 - share)  # the clip itself stays the larger part, so its length stays the right one
    return share, rng.permutation(rows)


def mix(clips: Array, others: Array, share: Array) -> Array:
    """`share` [B] of each of `clips` [B, ...] and the rest of `others`: of features, and of target distributions."""
    kept = share.reshape(-1, *[1] * (clips.ndim - 1))
    mixed: Array = kept * clips + (1.0 - kept) * others
    return mixed


def coloured_noise(rng: np.random.Generator, colours: int, n: int) -> Array:
    """Noise of unit power [colours, n] whose amplitude falls as f^-a, a evenly spaced from 0 (white) to 1 (brown)."""
    spectrum = np.fft.rfft(rng.standard_normal((colours, n)))
    slope = np.linspace(0.0, 1.0, colours)[:, None]
    spectrum *= np.maximum(np.arange(spectrum.shape[1]), n / 1000.0) ** -slope  # flat below 16 Hz at 16 kHz
    noise: npt.NDArray[Any] = np.fft.irfft(spectrum, n)
    unit: Array = (noise / np.sqrt(np.mean(noise**2, axis=1, keepdims=True))).astype(np.float32)
    return unit


def warped_triangles(frontend: LogMel, factor: float) -> Array:
    """Mel triangles on an axis stretched by `factor` up to 0.6 of Nyquist, and from there linearly to Nyquist itself."""
    nyquist = frontend.sample_rate / 2
    knee = 0.6 * nyquist
    edges = mel_edges(frontend.n_mels, frontend.f_min, frontend.f_max)
    upper = factor * knee + (edges - knee) * (nyquist - factor * knee) / (nyquist - knee)
    return mel_triangles(np.where(edges <= knee, factor * edges, upper), frontend.n_fft, frontend.sample_rate)
