"""Our files on a device: answers requests on stdin until stdin ends, one JSON object a line, one answer each. The last three
need no `open`.

    <- ready                                      {python, executable}
    -> open     {directory}                       make it, or check that it is ours    <- {directory}: absolute
    -> missing  {files {sha256: bytes}}           those that must be sent              <- {missing [sha256]}
    -> room     {bytes}                           whether so much can be stored        <- {free}
    -> put      {files [[sha256, bytes]]}         followed by their bytes              <- {}
    -> root     {files {name: sha256}, compile}   a directory with these files         <- {root}
    -> packages {keep, modules}                   versions, as a worker sees them      <- {packages, problems}
    -> examine  {directory, sources}              the machine                          <- facts
    -> clean    {directory}                       remove all that is ours              <- {freed}

An answer is {"ok": true, ...} or {"ok": false, "kind", "message"}.

    <directory>/.essm-deploy     says that the directory is ours
    <directory>/files/<sha256>   content, each once; whole or not there
    <directory>/roots/<hash>/    what a worker is started in or reads from: names for content, as hard links
    <directory>/incoming/        what is on its way
"""

from __future__ import annotations

import compileall
import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MARKER = ".essm-deploy"
_PARTS = ("files", "roots", "incoming")
_BLOCK = 1 << 20
_KEPT_SECONDS = 14 * 86400.0
_NEEDED_SECONDS = 3600.0  # what was used in the last hour may be in use, even where the disk is full
_SPARE_BYTES = 1 << 20
_PROBE = """
import importlib, json, sys
packages, problems = {}, {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        packages[name] = str(getattr(module, "__version__", "unknown"))
        if name == "onnxruntime":
            problems["providers"] = ", ".join(module.get_available_providers())
    except Exception as error:
        packages[name] = None
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            problems[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"packages": packages, "problems": problems}))
"""


class Refusal(Exception):
    """Why a request is not done: a kind for programs and a sentence for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Store:
    """The files below one directory, which is ours alone."""

    def __init__(self, directory: str) -> None:
        self.base = Path(directory).expanduser()
        self._sound: dict[str, tuple[int, ...]] = {}
        self._used: set[str] = set()
        self._create()
        self.prune(_KEPT_SECONDS)

    def _create(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        check_ours(self.base)
        (self.base / MARKER).touch()
        for part in _PARTS:
            (self.base / part).mkdir(exist_ok=True)

    def missing(self, files: dict[str, int]) -> dict[str, Any]:
        """The sha256 of those that are not there whole."""
        self._used |= files.keys()
        return {"missing": [sha for sha, size in files.items() if not self._is_sound(sha, size)]}

    def room(self, bytes: int) -> dict[str, Any]:
        """Free bytes of the disk, after what is old has been removed if need be. Refusal if that is too little."""
        needed = bytes + _SPARE_BYTES
        if shutil.disk_usage(self.base).free < needed:
            self.prune(_NEEDED_SECONDS)
        free = shutil.disk_usage(self.base).free
        if free < needed:
            raise Refusal("disk_full", f"{self.base} has {free} bytes free, and {needed} are needed")
        return {"free": free}

    def put(self, files: list[tuple[str, int]], reader: BinaryIO) -> dict[str, Any]:
        """Take the files' bytes from `reader`; each appears under its sha256 when it is whole and right."""
        for sha, size in files:
            incoming = self.base / "incoming" / f"{sha}.{os.getpid()}"
            try:
                self._receive(incoming, sha, size, reader)
            finally:
                incoming.unlink(missing_ok=True)
        return {}

    def _receive(self, incoming: Path, sha: str, size: int, reader: BinaryIO) -> None:
        digest = hashlib.sha256()
        with incoming.open("wb") as file:
            while size:
                block = reader.read(min(size, _BLOCK))
                if not block:
                    raise EOFError
                digest.update(block)
                file.write(block)
                size -= len(block)
            file.flush()
            os.fsync(file.fileno())  # or the disk would still be writing while the engine is timed
        if digest.hexdigest() != sha:
            raise Refusal("corrupt", f"what arrived has the sha256 {digest.hexdigest()[:12]}..., expected {sha[:12]}...")
        incoming.replace(self._path(sha))
        self._sound[sha] = _identity(self._path(sha))

    def root(self, files: dict[str, str], compile: bool) -> dict[str, Any]:
        """A directory that holds the content under these names; the content must be there. `compile`: Python modules."""
        name = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
        root = self.base / "roots" / name
        for path, sha in files.items():
            self._link(root / _plain(path), sha)
        if compile:  # or the first worker alone would compile them, in its own memory
            compileall.compile_dir(root, quiet=2)
        os.utime(root)
        self._used.add(name)
        return {"root": str(root)}

    def _link(self, path: Path, sha: str) -> None:
        source = self._path(sha)
        if path.exists() and path.samefile(source):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            path.hardlink_to(source)
        except OSError:  # FAT has no hard links
            shutil.copyfile(source, path)

    def prune(self, seconds: float) -> None:
        """Remove what was not used for so long: directories by their last use, content that none of them holds."""
        old = time.time() - seconds
        for root in (self.base / "roots").iterdir():
            if root.name not in self._used and root.stat().st_mtime < old:
                shutil.rmtree(root, ignore_errors=True)
        for file in (*(self.base / "files").iterdir(), *(self.base / "incoming").iterdir()):
            with contextlib.suppress(OSError):
                state = file.stat()
                if file.name not in self._used and state.st_nlink == 1 and max(state.st_mtime, state.st_ctime) < old:
                    file.unlink()

    def _is_sound(self, sha: str, size: int) -> bool:
        path = self._path(sha)
        if not path.is_file() or path.stat().st_size != size:
            return False
        if self._sound.get(sha) != _identity(path):
            if _sha256(path) != sha:
                return False
            self._sound[sha] = _identity(path)
        return True

    def _path(self, sha: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", sha):
            raise Refusal("request", f"not a sha256: {sha[:80]!r}")
        return self.base / "files" / sha


def check_ours(base: Path) -> None:
    """Refusal unless `base` is a directory of this user that nobody else writes to, and empty or marked as ours."""
    if base.is_symlink() or not base.is_dir():
        raise Refusal("directory", f"{base} is {'a link' if base.is_symlink() else 'a file'}, expected a directory")
    state = base.stat()
    if state.st_uid != os.getuid():
        raise Refusal("directory", f"{base} belongs to another user")
    if state.st_mode & 0o022:
        raise Refusal("directory", f"{base} may be written by other users (chmod go-w makes it ours)")
    if not (base / MARKER).is_file() and any(base.iterdir()):
        raise Refusal("directory", f"{base} holds files that essm-deploy did not write")


def clean(directory: str) -> dict[str, Any]:
    """Remove what is ours; the directory itself too if nothing else is in it."""
    base = Path(directory).expanduser()
    if not base.exists():
        return {"freed": 0}
    check_ours(base)
    freed = _size(base)
    for part in _PARTS:
        shutil.rmtree(base / part, ignore_errors=True)
    for name in ("lock", MARKER):
        (base / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        base.rmdir()
    return {"freed": freed}


def packages(keep: list[str], modules: list[str]) -> dict[str, Any]:
    """The versions of `modules` in a process with the worker's environment; null and a problem where one does not import."""
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    command = [sys.executable, "-c", _PROBE, *modules]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", stdin=subprocess.DEVNULL)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()
        raise Refusal(
            "python", f"{sys.executable} ends with status {done.returncode}: {(said or ['nothing said'])[-1]}"
        ) from None
    return found


def examine(directory: str, sources: dict[str, str]) -> dict[str, Any]:
    """Facts about the machine; `sources` are the modules `host` and `cuda` of the runtime."""
    base = Path(directory).expanduser()
    there = next(path for path in (base, *base.parents) if path.exists())
    host, cuda = (_module(name, sources[name]) for name in ("host", "cuda"))
    return {
        "machine": host.describe(),
        "memory": host.memory(),
        "gpus": cuda.describe_devices(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "directory": str(base),
        "problem": _problem_with(base, there),
        "disk_free_bytes": shutil.disk_usage(there).free,
        "ours_bytes": _size(base) if (base / MARKER).is_file() else 0,
    }


def _problem_with(base: Path, there: Path) -> str | None:
    try:
        if there == base:
            check_ours(base)
        return None if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written to"
    except Refusal as refusal:
        return str(refusal)


def _module(name: str, source: str) -> Any:
    module = types.ModuleType(f"essm_deploy_{name}")
    sys.modules[module.__name__] = module
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def _size(base: Path) -> int:
    states = (path.lstat() for path in base.rglob("*"))
    seen = {(state.st_ino, state.st_size) for state in states if stat.S_ISREG(state.st_mode)}
    return sum(size for _, size in seen)


def _plain(name: str) -> str:
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise Refusal("request", f"not a plain relative path: {name[:80]!r}")
    return name


def _identity(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return (state.st_ino, state.st_size, state.st_mtime_ns)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


_ANYTIME: dict[str, Callable[..., dict[str, Any]]] = {"packages": packages, "examine": examine, "clean": clean}


class Service:
    """Answers requests; `store` is there after `open`."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self._store: Store | None = None

    def serve(self) -> None:
        """Until the reader ends, or a transfer fails: what follows in the stream would be bytes of files."""
        self._send(ok=True, python=platform.python_version(), executable=sys.executable)
        for line in iter(self._reader.readline, b""):
            request = json.loads(line)
            op = request.pop("op")
            try:
                self._send(ok=True, **self._answer(op, request))
            except (Refusal, OSError) as problem:
                self._send(ok=False, **_problem(problem))
                if op == "put":
                    return

    def _answer(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        if op in _ANYTIME:
            return _ANYTIME[op](**request)
        if op == "open":
            self._store = Store(**request)
            return {"directory": str(self._store.base)}
        assert self._store is not None
        if op == "put":
            return self._store.put(**request, reader=self._reader)
        known: dict[str, Callable[..., dict[str, Any]]] = {
            "missing": self._store.missing,
            "room": self._store.room,
            "root": self._store.root,
        }
        return known[op](**request)

    def _send(self, **answer: Any) -> None:
        self._writer.write(json.dumps(answer).encode() + b"\n")
        self._writer.flush()


def _problem(problem: Exception) -> dict[str, str]:
    if isinstance(problem, Refusal):
        return {"kind": problem.kind, "message": str(problem)}
    assert isinstance(problem, OSError)
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    where = f"{problem.filename}: " if problem.filename else ""
    return {"kind": "disk_full" if full else "system", "message": f"{where}{problem.strerror or problem}"}


def main() -> None:
    """Serve on the standard streams."""
    os.umask(0o077)
    with contextlib.suppress(EOFError, BrokenPipeError):  # whoever asked is gone
        Service(sys.stdin.buffer, sys.stdout.buffer).serve()


if __name__ == "__main__":
    main()
