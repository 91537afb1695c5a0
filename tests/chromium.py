"""A headless Chromium for tests, spoken to over its DevTools pipe: no port is opened and nothing is installed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Its path, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page. `events` is everything that it reported since it was opened."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int, writer: int) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; AssertionError with what it says where it fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def open(self, address: str) -> None:
        """Go there, with every request, console line and error recorded, and wait until it is loaded."""
        if self._session is None:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def look(self, *, width: int, height: int, dark: bool) -> None:
        """The size of the screen and the reader's colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def requested(self) -> list[str]:
        """Every address that was asked for, the page's own left out."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return sent[1:]

    def complaints(self) -> list[str]:
        """Console lines, log entries and uncaught errors."""
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in _COMPLAINTS]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + 60
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "chromium does not answer"
            part = os.read(self._reader, 1 << 16)
            assert part, "chromium went away"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))


_COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, with its profile in `folder`; it is gone when the block ends."""
    path = find_chromium()
    assert path is not None
    to_it, from_us = os.pipe()
    to_us, from_it = os.pipe()
    flags = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", f"--user-data-dir={folder}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # its sandbox refuses to start for root
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "chromium", path, *flags, "about:blank"],
        pass_fds=(to_it, from_it),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_it)
    os.close(from_it)
    page = Page(process, to_us, from_us)
    try:
        yield page
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_us)
        os.close(to_us)
