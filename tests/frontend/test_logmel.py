"""The log-mel front end against its formula, written out again with an explicit DFT and triangles."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from essm_deploy.errors import InputError, UsageError
from essm_deploy.frontend import LogMel

RNG = np.random.default_rng(3)


def speechlike(n: int) -> np.ndarray:
    t = np.arange(n) / 16000
    tone = sum(np.sin(2 * np.pi * f * t + f) / (1 + i) for i, f in enumerate((140.0, 700.0, 1220.0, 2600.0)))
    return (0.1 * tone + 0.01 * RNG.standard_normal(n)).astype(np.float32)


def reference(mel: LogMel, waveform: np.ndarray) -> np.ndarray:
    """The module's formula in float64, with a DFT matrix and one triangle at a time."""
    x = np.zeros((mel.frames - 1) * mel.hop + mel.window)
    x[: len(waveform)] = waveform
    hann = np.array([0.5 * (1 - math.cos(2 * math.pi * n / mel.window)) for n in range(mel.window)])
    bins = np.arange(mel.n_fft // 2 + 1)
    dft = np.exp(-2j * np.pi * np.outer(np.arange(mel.window), bins) / mel.n_fft)
    frames = np.stack([x[t * mel.hop : t * mel.hop + mel.window] * hann for t in range(mel.frames)])
    power = np.abs(frames @ dft) ** 2
    to_mel, to_hz = lambda f: 2595 * math.log10(1 + f / 700), lambda m: 700 * (10 ** (m / 2595) - 1)
    low, high = to_mel(mel.f_min), to_mel(mel.f_max)
    corners = [to_hz(low + (high - low) * i / (mel.n_mels + 1)) for i in range(mel.n_mels + 2)]
    bands = np.zeros((mel.frames, mel.n_mels))
    for m in range(mel.n_mels):
        weights = np.interp(bins * mel.sample_rate / mel.n_fft, corners[m : m + 3], [0.0, 1.0, 0.0], left=0, right=0)
        bands[:, m] = power @ weights
    return (np.log(bands + mel.floor) - np.array(mel.mean)) / np.array(mel.std)


@pytest.fixture
def mel() -> LogMel:
    return LogMel(mean=tuple(np.linspace(-5, 1, 40).tolist()), std=tuple(np.linspace(1, 3, 40).tolist()))


def test_features_follow_the_formula(mel: LogMel) -> None:
    waveform = speechlike(16000)
    features, length = mel(waveform)
    assert (features.shape, features.dtype, length) == ((100, 40), np.float32, 100)
    # float32 power spectra and float32 logarithms: a few units in the last place of values near 10
    np.testing.assert_allclose(features, reference(mel, waveform), atol=2e-4)


def test_a_full_clip_is_padded_by_240_samples_to_100_frames(mel: LogMel) -> None:
    assert (mel.frames - 1) * mel.hop + mel.window - mel.clip_samples == 240


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (160, 1), (161, 2), (8000, 50), (15999, 100)])
def test_a_shorter_clip_has_one_valid_frame_per_started_hop(mel: LogMel, samples: int, frames: int) -> None:
    waveform = speechlike(samples)
    features, length = mel(waveform)
    assert length == frames
    np.testing.assert_allclose(features[:length], reference(mel, waveform)[:length], atol=2e-4)
    assert not features[length:].any()


def test_a_batch_of_spectra_is_the_same_as_one_at_a_time(mel: LogMel) -> None:
    clips = np.stack([speechlike(16000) for _ in range(3)])
    together = mel.normalise(mel.log_bands(mel.power(clips)))
    np.testing.assert_allclose(together, np.stack([mel(clip)[0] for clip in clips]), atol=1e-5)  # BLAS may block differently


@pytest.mark.parametrize("shape", [(0,), (16001,), (1, 16000)])
def test_a_clip_of_another_length_or_rank_is_refused(mel: LogMel, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="1 to 16000 samples"):
        mel(np.zeros(shape, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(mel: LogMel, value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinite"):
        mel(np.array([0.0, value], np.float32))


def test_the_config_survives_json(mel: LogMel) -> None:
    assert LogMel.from_config(json.loads(json.dumps(mel.to_config()))) == mel


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "mfcc"}, "'mfcc' is unknown"),
        ({"preemphasis": 0.97}, "unknown key 'preemphasis'"),
        ({"hop": 0}, "hop is 0"),
        ({"hop": 160.0}, "hop is 160.0"),
        ({"n_fft": 256}, "n_fft >= window"),
        ({"f_max": 9000.0}, "f_max <= sample_rate/2"),
        ({"floor": 0.0}, "floor > 0"),
        ({"f_min": "20"}, "f_min is '20'"),
        ({"frames": 50}, "do not cover"),
        ({"mean": [0.0]}, "40 finite numbers"),
        ({"std": [0.0] * 40}, "above 0"),
        ({"std": []}, "go together"),
    ],
)
def test_a_wrong_config_is_a_usage_error(mel: LogMel, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LogMel.from_config({**mel.to_config(), **change})


def test_without_statistics_the_logarithms_come_out() -> None:
    features, _ = LogMel()(np.zeros(16000, np.float32))
    np.testing.assert_allclose(features, math.log(LogMel().floor), rtol=1e-6)


def test_an_equal_front_end_is_equal(mel: LogMel) -> None:
    mel(speechlike(400))  # fills the cached filters, which must not count
    assert mel == dataclasses.replace(mel)
