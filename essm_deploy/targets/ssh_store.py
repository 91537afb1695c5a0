"""This side of `on_device/store.py`: our files on the device, sent only where they are not there already."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from essm_deploy.errors import BundleError, EssmError, UnavailableError, WorkerError
from essm_deploy.runtime.strict import parse_json
from essm_deploy.targets.ssh_connection import Connection, remote_command
from essm_deploy.targets.ssh_errors import SSH_FAILED, interpreter_refusal, last_line, lost, refusal
from essm_deploy.units import format_bytes

_ON_DEVICE = Path(__file__).parent / "on_device"
_BLOCK = 1 << 20
_MAX_LINE = 1 << 20
_ANSWER_SECONDS = 60.0
_WORTH_SAYING_BYTES = 1 << 20
_SLOWEST_BYTES_PER_S = 2e6  # a memory card that is read to check what is there

# In words that every Python understands, so that an old one can say that it is old.
_BOOT = (
    "import sys;v=sys.version_info;v>=(3,10)or sys.exit('essm-deploy needs Python 3.10, this is %d.%d'%v[:2]);"
    "exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'essm-deploy','exec'))"
)


def boot(python: str, program: str) -> tuple[str, bytes]:
    """The command that runs `on_device/<program>.py` on a device, and the bytes that its stdin must begin with."""
    source = (_ON_DEVICE / f"{program}.py").read_bytes()
    return remote_command(python, "-I", "-c", _BOOT, str(len(source))), source


class DeviceStore:
    """A session with our program on the device. Every method raises ConnectionLost, UnavailableError or WorkerError."""

    def __init__(self, connection: Connection, progress: Callable[[str], None]) -> None:
        self._connection = connection
        self.reach = connection.reach
        self._progress = progress
        self.greeting: dict[str, Any] = {}
        command, source = boot(self.reach.python, "store")
        self._process = connection.open(command)
        try:
            patience = _ANSWER_SECONDS + 3 * self.reach.connect_timeout_s  # a name may have several addresses
            self._write(source, patience)
            self.greeting = self._receive(patience)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the session still answers."""
        return self._process.poll() is None

    def ask(self, op: str, timeout: float = _ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """One request and its answer."""
        self._write(json.dumps({"op": op, **fields}).encode() + b"\n", timeout)
        return self._receive(timeout)

    def place(self, files: Mapping[str, Path], hashes: Mapping[str, str], *, compile: bool = False) -> str:
        """A directory there that holds `files` by these names; `hashes` are their sha256. What is there is not sent again."""
        sizes = {hashes[name]: path.stat().st_size for name, path in files.items()}
        sources = {hashes[name]: path for name, path in files.items()}
        patience = _ANSWER_SECONDS + sum(sizes.values()) / _SLOWEST_BYTES_PER_S
        missing = self.ask("missing", patience, files=sizes).get("missing")
        if not isinstance(missing, list) or not sizes.keys() >= set(map(str, missing)):
            raise self._garbage(str(missing))
        if missing:
            self._push({sha: sources[sha] for sha in missing}, {sha: sizes[sha] for sha in missing})
        return str(self.ask("root", patience, files=dict(hashes), compile=compile).get("root"))

    def close(self) -> None:
        """End the session, and the connection with it; the program there ends with its stdin."""
        self._connection.close()

    def _push(self, sources: Mapping[str, Path], sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        if total >= _WORTH_SAYING_BYTES:
            self._progress(f"sending {len(sizes)} file(s), {format_bytes(total)}, to {self.reach.host}")
        self.ask("room", bytes=total)
        request = {"op": "put", "files": [[sha, sizes[sha]] for sha in sources]}
        self._write(json.dumps(request).encode() + b"\n", _ANSWER_SECONDS)
        for sha, path in sources.items():
            self._write_file(path, sizes[sha])
        self._receive(_ANSWER_SECONDS + total / _SLOWEST_BYTES_PER_S)

    def _write_file(self, path: Path, size: int) -> None:
        with path.open("rb") as file:
            while size > 0 and self.alive:
                block = file.read(min(size, _BLOCK))
                if not block:
                    raise WorkerError(f"{path}: became shorter while it was sent to {self.reach.host}")
                size -= len(block)
                self._write(block, _ANSWER_SECONDS)

    def _write(self, content: bytes, timeout: float) -> None:
        """Nobody may be listening any more: the answer, or its absence, tells why."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), _Patience(self._process, timeout):
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with _Patience(self._process, timeout) as patience:
            line = self._process.stdout.readline(_MAX_LINE)
        if not line:
            raise self._silence(timeout if patience.lost else None)
        answer = _decoded(line)
        if answer is None:
            raise self._garbage(line.decode("utf-8", errors="replace"))
        if answer["ok"] is not True:
            raise self._refused(answer)
        return answer

    def _silence(self, timeout: float | None) -> EssmError:
        if timeout is not None:
            return UnavailableError(f"{self.reach.host} was silent for {timeout:g} s: look whether it hangs, and try again")
        status = self._process.wait()  # its stdout has ended
        said = self._connection.said()
        if status == SSH_FAILED and not self.greeting:
            return refusal(self.reach, said)
        return interpreter_refusal(self.reach, status, said) or lost(self.reach, said)

    def _refused(self, answer: Mapping[str, Any]) -> EssmError:
        kind, message = answer.get("kind"), last_line(str(answer.get("message")))
        if kind == "disk_full":
            return UnavailableError(
                f"the disk of {self.reach.host} is full: {message}; free some space there, or set `directory` under [reach] to "
                "another disk, and run the same command again"
            )
        if kind == "directory":
            return UnavailableError(f"{self.reach.host}: {message}; set `directory` under [reach] to one that can be ours")
        if kind == "corrupt":
            return WorkerError(f"a file was damaged on its way to {self.reach.host}: {message}; run the same command again")
        return UnavailableError(f"{self.reach.host}: {message}")

    def _garbage(self, read: str) -> EssmError:
        return WorkerError(
            f"{self.reach.host} answered {last_line(read)[:80]!r}, expected a JSON object: its login files (such as ~/.bashrc) "
            "must print nothing where there is no terminal"
        )


class _Patience:
    """Kills `process` if the block takes longer than `seconds`: a read or a write then ends. `lost` says that it did."""

    def __init__(self, process: subprocess.Popen[Any], seconds: float) -> None:
        self.lost = False
        self._process = process
        self._timer = threading.Timer(seconds, self._lose)
        self._timer.daemon = True

    def __enter__(self) -> _Patience:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()

    def _lose(self) -> None:
        self.lost = True
        self._process.kill()


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        answer = parse_json(line.decode("utf-8"), "the answer")
    except (UnicodeDecodeError, BundleError):
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("ok"), bool) else None
