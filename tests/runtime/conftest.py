from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from essm_deploy.runtime import Model, load
from tests.runtime.streams import Tiny, write_stream_bundle
from tests.runtime.tiny import write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Model]:
    """One bundle for each kind of stream, loaded once."""

    @cache
    def open_once(tiny: Tiny) -> Model:
        return load(write_stream_bundle(tmp_path_factory.mktemp("streams") / "bundle", tiny), threads=1)

    return open_once
