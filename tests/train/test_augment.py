"""Augmentation changes what it says and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from essm_deploy.frontend import LogMel
from essm_train.settings import AugmentSettings, load_settings
from essm_train.tasks.augment import Augment, coloured_noise, draw_mix, mix, warped_triangles
from tests.train.synthetic import tone

NOTHING = AugmentSettings(
    speed=0.0, shift_ms=0.0, gain_db=0.0, noise_chance=0.0, noise_db=(0.0, 0.0), warp=0.0,
    time_masks=0, time_width=0, band_masks=0, band_width=0, mixup=0.0,
)  # fmt: skip
MEL = LogMel()
CLIPS = np.stack([tone(word, speaker=1) for word in range(8)]).astype(np.float32)
FULL = np.full(8, 16000)


def augmented(waveforms: np.ndarray = CLIPS, lengths: np.ndarray = FULL, seed: int = 0, **changes: object) -> np.ndarray:
    augment = Augment(dataclasses.replace(NOTHING, **changes), MEL, seed=0)
    return augment(waveforms, lengths, np.random.default_rng(seed))[0]


PLAIN = np.stack([MEL(clip)[0] for clip in CLIPS])


def test_with_everything_off_the_features_are_the_front_ends() -> None:
    np.testing.assert_allclose(augmented(), PLAIN, atol=1e-3)  # float32 sums in another order


def test_a_gain_shifts_every_band_alike() -> None:
    loud = PLAIN > 2.0  # far above the floor
    shift = (augmented(gain_db=8.0) - PLAIN)[loud]
    assert np.abs(shift).max() <= 8.0 / 10 * np.log(10) + 1e-3
    for row in range(8):
        moved = (augmented(gain_db=8.0) - PLAIN)[row][PLAIN[row] > 2.0]
        assert moved.std() < 1e-2


@pytest.mark.parametrize("change", [{"speed": 0.15}, {"warp": 0.15}])
def test_speed_and_warp_move_the_pitch(change: dict[str, float]) -> None:
    peaks, moved = PLAIN[:, 50].argmax(axis=1), augmented(**change)[:, 50].argmax(axis=1)
    assert (peaks != moved).any()
    assert np.abs(peaks - moved).max() <= 3


def test_a_shift_moves_the_clip_in_time() -> None:
    click = np.zeros((4, 16000), np.float32)
    click[:, 8000] = 0.9
    at = augmented(click, FULL[:4], shift_ms=100.0).max(axis=2).argmax(axis=1)
    assert len(set(at.tolist())) > 1
    assert np.abs(at - 50).max() <= 12


def test_noise_fills_silence() -> None:
    half = CLIPS.copy()
    half[:, 8000:] = 0.0
    noisy = augmented(half, noise_chance=1.0, noise_db=(10.0, 10.0))
    assert (noisy[:, 60:90].mean(axis=(1, 2)) > augmented(half)[:, 60:90].mean(axis=(1, 2)) + 1.0).all()


def test_masks_hide_no_more_than_their_widths() -> None:
    hidden = augmented(time_masks=1, time_width=9) == 0.0
    assert 0 < hidden.all(axis=2).sum(axis=1).max() <= 9
    hidden = augmented(band_masks=2, band_width=5) == 0.0
    assert 0 < hidden.all(axis=1).sum(axis=1).max() <= 10


def test_a_short_clip_stays_short_and_its_padding_silent() -> None:
    augment = Augment(load_settings("keywords").augment, MEL, seed=0)
    lengths = np.array([16000, 8000, 300, 1])
    features, frames = augment(CLIPS[:4], lengths, np.random.default_rng(0))
    assert frames[0] == 100
    assert 30 < frames[1] < 70
    assert (frames >= 1).all()
    for row, n in enumerate(frames):
        assert not features[row, n:].any()


def test_the_generator_alone_decides() -> None:
    changes = {"speed": 0.1, "noise_chance": 0.5, "noise_db": (0.0, 20.0), "time_masks": 2, "time_width": 9}
    np.testing.assert_array_equal(augmented(seed=4, **changes), augmented(seed=4, **changes))
    assert not np.array_equal(augmented(seed=4, **changes), augmented(seed=5, **changes))


def test_mixing_keeps_the_larger_share_of_the_clip_itself_and_the_sum_of_the_targets() -> None:
    targets = np.eye(8, dtype=np.float32)
    share, other = draw_mix(8, 0.4, np.random.default_rng(0))
    features, mixed = (mix(array, array[other], share) for array in (PLAIN, targets))
    assert (np.diag(mixed) >= 0.5).all()
    np.testing.assert_allclose(mixed.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(features, np.einsum("ab,btm->atm", mixed, PLAIN), atol=1e-4)


def test_noise_has_unit_power_and_falls_with_frequency() -> None:
    noise = coloured_noise(np.random.default_rng(0), 3, 16000)
    np.testing.assert_allclose((noise**2).mean(axis=1), 1.0, rtol=1e-4)
    high = (np.abs(np.fft.rfft(noise, axis=1)[:, 4000:]) ** 2).sum(axis=1)
    assert high[0] > high[1] > high[2]


def test_a_warp_of_one_is_no_warp_and_nyquist_stays() -> None:
    np.testing.assert_allclose(warped_triangles(MEL, 1.0), MEL.triangles, atol=1e-5)
    for factor in (0.85, 1.15):
        assert (warped_triangles(MEL, factor).sum(axis=1) > 0).all()
