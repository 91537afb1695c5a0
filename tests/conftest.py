from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from essm_deploy.runtime.cuda import NoDeviceError, cuda_devices
from tests.checkpoints import BYTES, make_checkpoint

# How long an example takes says what else the machine does, not what the code does. CI tries the same examples every time: what
# it says is then about the change; new examples are found where people work.
settings.register_profile("steady", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {}
    if "ESSM_DATA" not in os.environ:
        missing["needs_data"] = "ESSM_DATA does not name the data folder"
    if "ESSM_SSH_LOOPBACK" not in os.environ:
        missing["ssh"] = "ESSM_SSH_LOOPBACK does not name a device: python tests/targets/loopback.py start FOLDER makes one"
    try:
        cuda_devices()
    except NoDeviceError as reason:
        missing["gpu"] = f"needs an NVIDIA GPU: {reason}"
    if importlib.util.find_spec("tensorrt_rtx") is None:
        missing["tensorrt_rtx"] = "tensorrt_rtx is not installed: pip install 'essm-deploy[tensorrt-rtx]'"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data folder; only tests marked needs_data may ask for it."""
    return Path(os.environ["ESSM_DATA"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("ESSM_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True, scope="session")
def _own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test is refused because somebody else measures on this machine."""
    os.environ["ESSM_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


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


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A run that was started in the background ignores Ctrl-C, and so would every process that a test interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
