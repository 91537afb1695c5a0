from __future__ import annotations

from pathlib import Path

import pytest
import torch

from essm_deploy.spectral.bank import hankel_bank
from tests.train.synthetic import make_data_set


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The models are small: two threads that wait for each other are slower, and sum in another order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic data set. Read-only."""
    return make_data_set(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="session")
def _bank_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bank")


@pytest.fixture
def shared_banks(_bank_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache of filter banks for all tests that train."""
    monkeypatch.setenv("ESSM_CACHE", str(_bank_cache))


@pytest.fixture
def keyword_bank(_bank_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests that train: the bank takes longer to compute than the training."""
    monkeypatch.setenv("ESSM_CACHE", str(_bank_cache))
    hankel_bank(100, 2)  # a block of 32 lands in the cache whatever is asked for
