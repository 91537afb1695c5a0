"""A worker in a page of a headless Chromium, as the bridge sees it."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from essm_deploy.errors import WorkerError
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.targets.browser_process import chromium_process, page_process
from essm_deploy.targets.page_server import Exchange, Shelf, page_server
from essm_deploy.targets.web_runtime import MODULES

_START_SECONDS = 100.0


@dataclass
class PageWorker:
    """The page, whose messages come through `exchange`."""

    browser: subprocess.Popen[bytes]
    exchange: Exchange
    started: float = field(default_factory=time.monotonic)
    _proc: Path | None = None
    _greeted: bool = False

    def next(self, timeout: float) -> JsonObject | None:
        """The next message; None if there is none within `timeout` seconds. WorkerError if there will be none."""
        try:
            message = self.exchange.events.get(timeout=timeout)
        except queue.Empty:
            self._check()
            return None
        self._greeted = True
        return message

    def send(self, request: JsonObject, root: Path, engine: Engine) -> None:
        """Hand the request over, and the engine's files."""
        self.exchange.offer(request, Shelf(root, names=engine.files))

    def proc(self) -> Path | None:
        """/proc/PID of the process that runs the page; None where the system does not show it."""
        self._proc = page_process(self.browser.pid)
        return self._proc

    def _check(self) -> None:
        status = self.browser.poll()
        if status is not None:
            raise WorkerError(f"chromium ended with status {status}")
        if self._proc is not None and not self._proc.exists():
            raise WorkerError("the page's process ended, perhaps for want of memory")
        if not self._greeted and time.monotonic() - self.started > _START_SECONDS:
            raise WorkerError(f"chromium did not run the page within {_START_SECONDS:g} s")


@contextlib.contextmanager
def page_worker(chromium: str, package: Path) -> Iterator[PageWorker]:
    """A running page on the onnxruntime-web in `package`; browser and server are gone when the block ends."""
    shelves = {
        "web": Shelf(MODULES, suffixes=(".html", ".mjs")),
        "ort": Shelf(package / "dist", suffixes=(".mjs", ".wasm")),
    }
    exchange = Exchange(shelves)
    with page_server(exchange) as address, chromium_process(chromium, address) as browser:
        yield PageWorker(browser, exchange)
