"""A headless Chromium with one page, and what the kernel says of the process that runs the page."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from essm_deploy.errors import UnavailableError
from essm_deploy.files import staging

VARIABLE = "ESSM_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PROC = Path("/proc")

# An empty profile, no traffic of the browser's own, and no second thoughts about a page that nobody looks at.
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-breakpad",
    "--disable-features=SpareRendererForSitePerProcess",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--remote-debugging-pipe",
)

# File descriptor 3 is the debugger's pipe, of which nobody makes use but for this: the browser ends when it is closed, so
# that it never outlives whoever holds the other end.
_WITH_PIPE = 'exec "$0" "$@" 3<&0 4>/dev/null </dev/null'


def find_chromium(stated: str | None = None) -> str:
    """The path of the browser: `stated`, $ESSM_CHROMIUM, or the first of its usual names. UnavailableError if there is none."""
    wanted = stated or os.environ.get(VARIABLE)
    for name in [wanted] if wanted else _NAMES:
        found = shutil.which(Path(name).expanduser())
        if found:
            return found
    what = f"there is no {wanted}" if wanted else f"none of {', '.join(_NAMES)} is on the PATH"
    raise UnavailableError(f"Chromium is not here: {what}; run `apt-get install chromium`, or set {VARIABLE} to its path")


@contextlib.contextmanager
def chromium_process(chromium: str, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Open `address` in a fresh browser; it and all its files are gone when the block ends. UnavailableError."""
    with staging() as profile:
        try:
            process = _start(chromium, address, profile)
            try:
                yield process
            finally:
                _end(process)
        finally:
            _remove(profile)


def page_process(browser: int) -> Path | None:
    """/proc/PID of the process that runs the page of the browser with the process id `browser`; None where there is none.

    The browser has such a process for its own pages too; of those that are left, the page's is the largest.
    """
    return max((entry for entry in _descendants(browser) if _is_renderer(entry)), key=_resident, default=None)


def _start(chromium: str, address: str, profile: Path) -> subprocess.Popen[bytes]:
    flags = [*_FLAGS, f"--user-data-dir={profile}/data", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(profile))
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WITH_PIPE, chromium, *flags, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **homes},
        )
    except OSError as error:
        raise UnavailableError(f"{chromium} cannot be started: {error.strerror}") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove(folder: Path) -> None:
    """Processes of the browser may write for a moment longer than the one that was waited for."""
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)


def _descendants(pid: int) -> Iterator[Path]:
    parents: dict[int, list[Path]] = {}
    for entry in _PROC.glob("[0-9]*"):
        parents.setdefault(_parent(entry), []).append(entry)
    waiting = [pid]
    while waiting:
        for entry in parents.get(waiting.pop(), []):
            yield entry
            waiting.append(int(entry.name))


def _parent(entry: Path) -> int:
    # The second field is the program's name in parentheses, which may hold anything.
    fields = _read(entry / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _is_renderer(entry: Path) -> bool:
    arguments = _read(entry / "cmdline").replace("\0", " ").split()
    return "--type=renderer" in arguments and "--top-chrome-webui" not in arguments


def _resident(entry: Path) -> int:
    fields = _read(entry / "statm").split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
