from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of filter banks for all tests of this folder (a long exact bank takes seconds), never the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESSM_CACHE", str(tmp_path_factory.mktemp("banks")))
        yield
