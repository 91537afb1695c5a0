from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.tiny import write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")
