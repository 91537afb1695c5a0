"""Starting a worker on another machine, over ssh. Nothing of ours is installed there, no port is opened and no daemon stays.

What a device needs is sshd, Python 3.10 with numpy and onnxruntime, and a directory for our files. docs/targets.md tells how
to set one up, and what is sent where.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from essm_deploy.errors import ConnectionLost, UnavailableError
from essm_deploy.runtime.files import resolve_file, sha256_file
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Reach
from essm_deploy.targets.local import KEPT
from essm_deploy.targets.runner import runner_files
from essm_deploy.targets.ssh_connection import Connection, Session
from essm_deploy.targets.ssh_errors import loss, lost
from essm_deploy.targets.ssh_packages import package_checks
from essm_deploy.targets.ssh_store import DeviceStore, boot

_Answer = TypeVar("_Answer")


@dataclass
class _Device:
    """A session that has been looked at: our files can go there, and a worker can be started in `runner`."""

    store: DeviceStore
    directory: str
    runner: str


@dataclass
class SshLauncher:
    """Starts workers on the device at `reach`. It connects when it is first needed; `close` ends the connection.

    One worker runs there at a time, whoever started it. `wait_s`: as long as the one of a cut connection may take to go.
    """

    reach: Reach
    progress: Callable[[str], None]
    wait_s: float = 5.0
    remote: ClassVar[bool] = True
    _device: _Device | None = None
    _was_lost: bool = False
    _hashes: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = Connection(self.reach)

    @property
    def host(self) -> str | None:
        """What the figures' environment calls the device."""
        return self.reach.host

    def place(self, root: Path, engine: Engine) -> str:
        """Send the engine's files, as far as they are not there; returns the directory there that holds them.

        Raises UnavailableError, each with what to do: no connection, no suitable Python, no room.
        """
        files = {name: resolve_file(root, name) for name in engine.files}
        hashes = {name: self._sha256(path) for name, path in files.items()}
        return self._retried(lambda device: device.store.place(files, hashes))

    def start(self) -> Session:
        """The running worker, with text pipes. Raises what `place` raises."""
        return self._retried(self._start)

    def close(self) -> None:
        """End the connection, if there is one; a later call connects again."""
        self._device = None
        self.connection.close()

    def _retried(self, use: Callable[[_Device], _Answer]) -> _Answer:
        """`use` the device, once more over a new connection if this one turns out to be lost."""
        try:
            return use(self._ready())
        except ConnectionLost:
            self._drop()
            return use(self._ready())

    def _ready(self) -> _Device:
        """The device over a connection that stands."""
        if self._device is not None and not self._device.store.alive:
            self._drop()
        if self._device is None:
            self._device = self._connected()
        return self._device

    def _drop(self) -> None:
        self.progress(f"{loss(self.reach, self.connection.said())}; connecting again")
        self.close()
        self._was_lost = True

    def _connected(self) -> _Device:
        try:
            store = DeviceStore(self.connection, self.progress)
            try:
                return _prepare(store)
            except BaseException:
                store.close()
                raise
        except UnavailableError as error:
            if self._was_lost:
                raise UnavailableError(f"{error}; what was measured is kept, and the same command resumes") from None
            raise

    def _start(self, device: _Device) -> Session:
        command, source = boot(self.reach.python, "start")
        wanted = {"runner": device.runner, "lock": f"{device.directory}/lock", "wait_s": self.wait_s, "keep": KEPT}
        process = self.connection.session(command)
        assert process.stdin is not None
        try:
            process.stdin.write(source.decode() + json.dumps(wanted) + "\n")
            process.stdin.flush()
        except OSError:
            process.kill()
            process.communicate()
            raise lost(self.reach, self.connection.said()) from None
        return process

    def _sha256(self, path: Path) -> str:
        """Hashed again only if the file has changed: the engines of a sweep share their weights."""
        state = path.stat()
        key = (path, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._hashes:
            self._hashes[key] = sha256_file(path)
        return self._hashes[key]


def _prepare(store: DeviceStore) -> _Device:
    """Check what a worker needs before anything is sent, then send the worker."""
    for check in package_checks(store):
        if check.fix is not None:
            raise UnavailableError(f"{store.reach.host}: {check.what} is {check.found}: {check.fix}")
    directory = str(store.ask("open", directory=store.reach.directory).get("directory"))
    modules = runner_files()
    hashes = {name: sha256_file(path) for name, path in modules.items()}
    return _Device(store, directory, store.place(modules, hashes, compile=True))
