from __future__ import annotations

from pathlib import Path

import pytest

from essm_deploy.errors import UnavailableError
from essm_deploy.targets.browser_process import find_chromium
from essm_deploy.targets.web_runtime import find_node, find_package


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node."""
    try:
        return find_node()
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of onnxruntime-web."""
    try:
        return find_package()
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium."""
    try:
        return find_chromium()
    except UnavailableError as reason:
        pytest.skip(str(reason))
