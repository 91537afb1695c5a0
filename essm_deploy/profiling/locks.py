"""One sweep at a time on a device: two would measure each other.

    <locks>/<device>.lock       held (flock) while a sweep measures; says who holds it: {pid, since}

The kernel lets go when the process ends, however it ends. `<locks>` is $ESSM_LOCKS, or a directory that all users of this
machine share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from essm_deploy.errors import UnavailableError
from essm_deploy.targets.description import Target

try:
    import fcntl
except ImportError:  # not a POSIX system: two sweeps at once are then the user's to avoid
    fcntl = None  # type: ignore[assignment]

THIS_MACHINE = "this machine"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MOST_BYTES = 4096


def device_of(target: Target) -> str:
    """What two targets have in common if they cannot be measured at the same time: a host, whatever runs on it."""
    host = (target.reach.host or "").rpartition("@")[2]
    return THIS_MACHINE if host in ("", *_LOCAL) else host


@contextmanager
def hold_devices(devices: Iterable[str], say: Callable[[str], None], *, wait: bool) -> Iterator[None]:
    """Hold all the devices until the block ends. One that another sweep holds is waited for, or is an UnavailableError.

    They are taken in one order by everybody, so that two that wait cannot wait for each other.
    """
    with ExitStack() as stack:
        for device in sorted(set(devices)):
            stack.enter_context(_hold(device, say, wait))
        yield


def locks_directory() -> Path:
    """Where the locks of this machine are."""
    if os.environ.get("ESSM_LOCKS"):
        return Path(os.environ["ESSM_LOCKS"])
    shared = Path("/tmp")  # not $TMPDIR, which may be a user's own
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "essm-deploy-locks"


@contextmanager
def _hold(device: str, say: Callable[[str], None], wait: bool) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    handle = _open(locks_directory() / _file_name(device))
    try:
        _take(handle, device, say, wait)
        with contextlib.suppress(OSError):  # without it, the one who is refused does not learn by whom
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
        yield
    finally:
        os.close(handle)


def _file_name(device: str) -> str:
    """Readable, and of no two devices the same."""
    readable = re.sub(r"[^A-Za-z0-9.-]", "-", device)[:40]
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.lock"


def _take(handle: int, device: str, say: Callable[[str], None], wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(handle)
        if not wait:
            raise UnavailableError(
                f"{device} is being measured by {holder}, and two sweeps would disturb each other: "
                "start again when it has ended, or let --wait do it"
            ) from None
        say(f"waiting for {device}, which is being measured by {holder}")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _holder(handle: int) -> str:
    try:
        record = json.loads(os.pread(handle, _MOST_BYTES, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record["since"])))
        return f"process {int(record['pid'])} since {since}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"


def _open(path: Path) -> int:
    """A file that every user may lock. Links are not followed: anybody may have put one there."""
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o1777)
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask
            return handle
        # Without O_CREAT, which the kernel refuses for other users' files in a directory that everybody may write to.
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise UnavailableError(
            f"{path}: cannot be opened to lock the device ({error.strerror}); set ESSM_LOCKS to a directory of your own"
        ) from None
