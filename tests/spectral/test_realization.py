"""One small state for every channel: how well it fits, that it is stable, and that it runs in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essm_deploy.errors import BankError
from essm_deploy.spectral import realization_cache
from essm_deploy.spectral.allpass import cascade, impulse_states
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_deploy.spectral.realization import NoRealization, Realization, realize
from essm_deploy.spectral.simulation import relative_errors, simulate, windowed_convolution

FIRST_16 = 1e-7
ALL_32 = 1e-5


def realized(length: int, channels: int = 32, method: str = "exact", **options: object) -> Realization:
    found = realize(hankel_bank(length, channels, method=method), **options)  # type: ignore[arg-type]
    assert isinstance(found, Realization), found.reason
    return found


@pytest.fixture(scope="module")
def medium() -> Realization:
    return realized(1024)


@pytest.mark.parametrize(
    ("length", "method"),
    [
        (1024, "exact"),
        (2048, "factor"),
        pytest.param(2048, "exact", marks=pytest.mark.slow),
        pytest.param(4096, "factor", marks=pytest.mark.slow),
        pytest.param(16384, "factor", marks=pytest.mark.slow),
    ],
)
def test_at_most_56_states_reproduce_32_filters(length: int, method: str) -> None:
    found = realized(length, method=method)
    filters = hankel_bank(length, 32, method=method).filters  # type: ignore[arg-type]
    errors = np.linalg.norm(found.C @ found.impulse_states(length) - filters, axis=1)
    assert found.states <= 56
    assert errors[:16].max() <= FIRST_16
    assert errors.max() <= ALL_32
    np.testing.assert_allclose(found.residual, errors, rtol=1e-3, atol=1e-15)


def test_fewer_channels_need_fewer_states(medium: Realization) -> None:
    eight = realized(1024, 8)
    assert eight.states <= 24 < medium.states
    assert eight.residual.max() <= FIRST_16


def test_a_looser_tolerance_needs_fewer_states(medium: Realization) -> None:
    assert realized(1024, tolerance=1e-3).states < medium.states


def test_tolerances_may_differ_by_channel() -> None:
    bounds = np.r_[np.full(4, 1e-6), np.full(4, 1e-2)]
    found = realized(1024, 8, tolerance=bounds)
    assert (found.residual <= bounds).all()
    assert found.states < realized(1024, 8, tolerance=1e-6).states


def test_the_system_is_stable_and_its_coefficients_are_float32(medium: Realization) -> None:
    assert medium.spectral_radius < 1
    # Every pole decays by 10% over the filter, or by half of that after rounding a full matrix to float32.
    assert medium.spectral_radius <= np.exp(-0.05 / medium.length)
    for matrix in (medium.A, medium.B):
        assert (matrix == matrix.astype(np.float32)).all()
    # Nothing is amplified on the way: bounded coefficients, features that are projections of the state.
    assert np.linalg.norm(medium.A, 2) < 1.2
    assert np.linalg.norm(medium.C, axis=1).max() < 1.01


def test_a_triangular_system_is_the_same_system(medium: Realization) -> None:
    triangular = realized(1024, triangular=True)
    assert (np.triu(triangular.A, 2) == 0).all()
    assert triangular.states == medium.states
    assert triangular.spectral_radius <= np.exp(-0.09 / medium.length)
    assert triangular.residual.max() <= ALL_32


def test_a_budget_is_a_prefix_of_the_readout(medium: Realization) -> None:
    assert (medium.C[:5] == medium.prefix(5).C).all()
    assert medium.prefix(5).states == medium.states


def test_chunks_give_what_steps_give(medium: Realization) -> None:
    inputs = np.random.default_rng(0).standard_normal((64, 3))
    features = simulate(medium, inputs)
    transition, entry = medium.carry(32)
    middle = entry @ inputs[:32]
    tail = medium.readout(32) @ middle
    within = simulate(medium, inputs[32:])
    np.testing.assert_allclose(tail + within, features[32:], atol=1e-12)
    np.testing.assert_allclose(
        transition @ middle + entry @ inputs[32:], medium.impulse_states(64)[:, ::-1] @ inputs, atol=1e-12
    )


def test_a_short_filter_is_used_itself() -> None:
    found = realize(hankel_bank(60, 8))
    assert isinstance(found, NoRealization)
    assert "use the filter itself" in found.reason


def white_noise(length: int, channels: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).standard_normal((length, channels)))[0].T


def test_white_noise_has_no_realization() -> None:
    found = realize(Bank(white_noise(1024, 8), np.ones(8), "embedded"))
    assert isinstance(found, NoRealization)
    assert found.faulty == tuple(range(1, 9))
    assert "1-8" in found.reason
    assert found.residual.min() > 0.1


def float32_subspace_iteration(length: int, channels: int, seed: int) -> Bank:
    """What older checkpoints hold: float32 block power iteration through the FFT, re-orthogonalised every ten steps."""
    rng = np.random.default_rng(seed)
    s = np.arange(2, 2 * length + 1, dtype=np.float32)
    spectrum = np.fft.rfft((2 / (s**3 - s + np.float32(1e-6))), 4 * length).astype(np.complex64)

    def product(block: np.ndarray) -> np.ndarray:
        image = np.fft.irfft(spectrum * np.fft.rfft(block[:, ::-1], 4 * length), 4 * length)
        return np.asarray(image[:, length - 1 : 2 * length - 1], np.float32)

    block = np.linalg.qr(rng.standard_normal((length, channels + 8)).astype(np.float32))[0].T
    for _ in range(70):
        block = np.linalg.qr(product(block).T)[0].T
    values, rotation = np.linalg.eigh((block @ product(block).T).astype(np.float32))
    filters = (rotation.T @ block)[::-1][:channels]
    return Bank(filters.astype(np.float64), np.abs(values[::-1][:channels]).astype(np.float64), "embedded")


def test_an_older_checkpoints_bank_is_refused_and_its_noise_is_named() -> None:
    bank = float32_subspace_iteration(1024, 24, seed=0)
    found = realize(bank)
    assert isinstance(found, NoRealization)
    # Its first channels are filters, the later ones depend on the seed.
    assert set(range(13, 25)) <= set(found.faulty)
    assert not set(range(1, 8)) & set(found.faulty)
    assert isinstance(realize(bank, channels=4, tolerance=1e-3), Realization)


def test_too_few_states_are_reported_as_such() -> None:
    found = realize(hankel_bank(1024, 8), max_states=12)
    assert isinstance(found, NoRealization)
    assert found.faulty == ()
    assert "12 states are not enough" in found.reason


@pytest.mark.parametrize("options", [{"tolerance": [1e-3]}, {"tolerance": 0.0}, {"max_states": 1}, {"channels": 9}])
def test_requests_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BankError):
        realize(hankel_bank(1024, 8), **options)  # type: ignore[arg-type]


def test_float32_steps_stay_close_to_the_convolution(medium: Realization) -> None:
    inputs = np.random.default_rng(2).standard_normal((1024, 8))
    expected = windowed_convolution(hankel_bank(1024, 32, method="exact").filters, inputs)
    errors = relative_errors(simulate(medium, inputs, dtype=np.float32), expected)
    # Twice what was measured; the highest channels carry the noise that their growing tails amplify.
    for channel, bound in ((1, 5e-7), (8, 2e-6), (16, 2e-6), (24, 1e-5), (32, 2e-4)):
        assert errors[channel - 1] <= bound, channel


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_cascade_has_the_poles_asked_for_and_orthonormal_rows(order: str) -> None:
    pairs = np.array([0.3 + 0.4j, 0.95 + 0.2j, 0.9999 + 1e-5j])
    poles = np.concatenate([[0.999999, -0.2, 0.0, 0.5, 0.5], pairs, pairs.conj()])
    poles = poles[np.argsort(np.abs(poles))][:: 1 if order == "ascending" else -1]
    A, B = cascade(poles)
    assert np.abs(A @ A.T + np.outer(B, B) - np.eye(len(poles))).max() < 1e-14
    found = np.linalg.eigvals(A.T)
    # A double pole moves by the square root of the rounding.
    assert max(np.abs(found - pole).min() for pole in poles) < 1e-7


def test_impulse_states_are_powers_of_the_transition() -> None:
    A, B = cascade(np.array([0.5, 0.9]))
    direct = np.stack([np.linalg.matrix_power(A, t) @ B for t in range(7)], axis=1)
    np.testing.assert_allclose(impulse_states(A, B, 7), direct, atol=1e-15)


def test_a_full_disk_keeps_nothing_of_a_realization(
    medium: Realization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, **arrays: object) -> None:
        raise OSError(28, "No space left on device")

    realization_cache._write(tmp_path / "found.npz", medium)
    (tmp_path / "found.npz").unlink()
    monkeypatch.setattr(np, "savez", full)
    realization_cache._write(tmp_path / "found.npz", medium)
    assert [*tmp_path.iterdir()] == []
