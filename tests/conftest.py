from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checkpoints import BYTES, make_checkpoint


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "ESSM_DATA" not in os.environ:
        skip = pytest.mark.skip(reason="ESSM_DATA does not name the data folder")
        for item in items:
            if item.get_closest_marker("needs_data"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data folder; only tests marked needs_data may ask for it."""
    return Path(os.environ["ESSM_DATA"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("ESSM_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def keywords(tmp_path: Path) -> Path:
    """A small random classifier over features."""
    return make_checkpoint(tmp_path / "keywords")


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    """A small random model over tokens, with a tied head."""
    return make_checkpoint(tmp_path / "bytes", BYTES, quality=None)


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The keyword spotter that ships with the package."""
    return Path(__file__).parent.parent / "examples" / "checkpoints" / "keywords"
