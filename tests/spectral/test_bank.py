"""The Hankel bank: right to the digits it promises, and refused where it would be noise."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from essm_deploy.errors import BankError, UnavailableError
from essm_deploy.spectral import bank as bank_module
from essm_deploy.spectral import bank_cache
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_deploy.spectral.factor import factor_filters, resolved

ORACLE = Path(__file__).parent / "data" / "hankel_L24.npz"


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESSM_CACHE", str(tmp_path))
    return tmp_path / "hankel"


def distances(filters: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.linalg.norm(filters - expected[: len(filters)], axis=1)


def test_every_filter_of_a_short_bank_equals_the_dense_solver_in_120_digits() -> None:
    bank = hankel_bank(24, 24)
    with np.load(ORACLE) as oracle:
        # Both are rounded from far more digits: one unit in the last place of a unit vector.
        assert distances(bank.filters, oracle["filters"]).max() <= 1e-15
        np.testing.assert_allclose(bank.sigma, oracle["sigma"], rtol=1e-15)


@pytest.mark.parametrize(
    ("length", "channels", "method"),
    [(1, 1, "auto"), (5, 5, "auto"), (60, 32, "auto"), (40, 40, "exact"), (2048, 32, "factor"), (3000, 7, "auto")],
)
def test_filters_are_orthonormal_with_a_positive_peak_and_descending_eigenvalues(
    length: int, channels: int, method: bank_module.Method
) -> None:
    bank = hankel_bank(length, channels, method=method)
    assert bank.filters.shape == (channels, length)
    assert bank.filters.dtype == bank.sigma.dtype == np.float64
    assert np.abs(bank.filters @ bank.filters.T - np.eye(channels)).max() <= 1e-12
    assert (np.diff(bank.sigma) < 0).all()
    assert bank.sigma[-1] > 0
    assert (bank.filters[np.arange(channels), np.abs(bank.filters).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize("length", [60, 500, 1500])
def test_filters_satisfy_the_eigenvalue_equation_to_rounding(length: int) -> None:
    bank = hankel_bank(length, 32)
    s = np.arange(length)[:, None] + np.arange(length) + 2.0
    residual = bank.filters @ (2 / (s**3 - s)) - bank.sigma[:, None] * bank.filters
    # Z has norm 0.36, so float64 cannot check more than this.
    assert np.linalg.norm(residual, axis=1).max() <= 1e-14


@pytest.mark.parametrize("length", [60, 2048])
def test_a_shorter_bank_is_a_prefix_to_the_last_bit(length: int) -> None:
    long, short = hankel_bank(length, 32), hankel_bank(length, 8)
    assert short.filters.tobytes() == long.filters[:8].tobytes()
    assert short.sha256 == long.prefix(8).sha256


def test_the_two_paths_agree_where_float64_resolves_the_bank() -> None:
    exact, factor = hankel_bank(1024, 32, method="exact"), hankel_bank(1024, 32, method="factor")
    assert (exact.kind, factor.kind) == ("exact", "factor")
    assert distances(factor.filters, exact.filters).max() <= 2e-8


@pytest.mark.parametrize("length", [30, 100, 300, 700])
def test_filters_that_the_factor_path_calls_resolved_are(length: int) -> None:
    filters, sigma = factor_filters(length)
    count = min(resolved(sigma), 32)
    assert 15 < count <= 32
    expected = hankel_bank(length, min(length, 32), method="exact").filters[:count]
    aligned = filters[:count] * np.sign(np.sum(filters[:count] * expected, axis=1))[:, None]
    assert distances(aligned, expected).max() <= 2e-8


def test_auto_takes_the_factor_only_where_it_resolves_the_whole_block() -> None:
    assert hankel_bank(2048, 32).kind == "factor"
    assert hankel_bank(100, 8).kind == "exact"


@pytest.mark.parametrize(("length", "channels"), [(8, 9), (0, 1), (8, 0), (-3, 2)])
def test_filters_that_do_not_exist_are_refused(length: int, channels: int) -> None:
    with pytest.raises(BankError):
        hankel_bank(length, channels)


def test_the_factor_path_refuses_channels_that_would_be_noise() -> None:
    with pytest.raises(BankError, match=r"resolves \d+ filters of length 100, not 32.*exact"):
        hankel_bank(100, 32, method="factor")


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(BankError, match="expected auto, factor or exact"):
        hankel_bank(100, 8, method="guess")  # type: ignore[arg-type]


def test_more_digits_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("essm_deploy.spectral.exact.MAX_BITS", 320)
    with pytest.raises(BankError, match="bits"):
        hankel_bank(60, 60, cache=False)


def test_without_flint_the_exact_path_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(UnavailableError, match="pip install 'python-flint"):
        hankel_bank(24, 8, method="exact", cache=False)


def test_without_flint_a_long_bank_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    assert hankel_bank(2048, 32, cache=False).kind == "factor"


def test_a_second_call_reads_the_cache(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hankel_bank(24, 8)
    monkeypatch.setattr(bank_module, "exact_filters", lambda *_: pytest.fail("computed twice"))
    assert hankel_bank(24, 8).sha256 == first.sha256
    # The block was stored, so a longer prefix of it is there as well; and no temporary file is left.
    assert hankel_bank(24, 24).prefix(8).sha256 == first.sha256
    assert all(not path.name.startswith(".") for path in fresh_cache.iterdir())


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "garbage", "other bank", "pickle"])
def test_a_damaged_cache_file_is_computed_again(fresh_cache: Path, damage: str) -> None:
    first = hankel_bank(24, 8, method="exact")
    path = next(fresh_cache.glob("*exact*"))
    raw = path.read_bytes()
    if damage == "flip":
        at = raw.index(first.filters[0].tobytes()) + 11
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    elif damage == "other bank":
        np.savez(path, filters=np.eye(24), sigma=np.ones(24), sha256=np.array("0" * 64))
    elif damage == "pickle":
        np.savez(path, filters=np.array([object()]), sigma=np.ones(24), sha256=np.array("0" * 64))
    else:
        path.write_bytes({"truncate": raw[: len(raw) // 2], "empty": b"", "garbage": b"x" * 5000}[damage])
    assert hankel_bank(24, 8, method="exact").sha256 == first.sha256
    assert hankel_bank(24, 8, method="exact").sha256 == first.sha256


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ESSM_CACHE", str(tmp_path / "file"))
    assert hankel_bank(24, 8).channels == 8


def test_the_user_cache_directory_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESSM_CACHE")
    assert "essm-deploy" in bank_cache.directory().parts


def test_the_hash_is_over_little_endian_bytes_in_c_order() -> None:
    filters = np.arange(6.0).reshape(2, 3)
    plain = Bank(filters, np.ones(2), "embedded").sha256
    assert Bank(np.asfortranarray(filters).astype(">f8"), np.ones(2), "embedded").sha256 == plain


def test_a_prefix_beyond_the_bank_is_refused() -> None:
    with pytest.raises(BankError, match=r"1\.\.8"):
        hankel_bank(24, 8).prefix(9)


def oracle(folder: Path, length: int) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"hankel_L{length}_K32.npz") as file:
        return file["phi"], file["sigma"]


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("length", "method", "bound"),
    [
        (60, "auto", 1e-12),
        (100, "auto", 1e-12),
        (256, "auto", 1e-12),
        (1024, "factor", 2e-8),
        (2048, "factor", 2e-8),
        (1024, "exact", 1e-10),
        pytest.param(2048, "exact", 1e-10, marks=pytest.mark.slow),
    ],
)
def test_all_filters_match_the_reference(data_dir: Path, length: int, method: bank_module.Method, bound: float) -> None:
    phi, sigma = oracle(data_dir.parent / "reference", length)
    bank = hankel_bank(length, 32, method=method)
    assert distances(bank.filters, phi).max() <= bound
    np.testing.assert_allclose(bank.sigma, sigma, rtol=1e-6)
