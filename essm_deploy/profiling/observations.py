"""The journal of a sweep: what was measured survives whatever ends the sweep.

    <cache>/sweeps/<key>/observations.jsonl       one line a finished measurement, with its samples, on disk before the
                                                  next begins
    <cache>/sweeps/<key>/finished-<time>.jsonl    sweeps that came to an answer; the last few are kept, and never read
                                                  again

The key is a hash of everything that a number depends on (weights, target, settings, versions here and on the device), so
that a record is either exactly what would be measured again or is not found. A line that was torn or damaged is left out,
and its engine measured again. `<cache>` is $ESSM_CACHE, or the user's cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from essm_deploy.errors import BuildError, BundleError, UsageError
from essm_deploy.profiling.verdict import Measurement
from essm_deploy.runtime.strict import parse_json

try:
    import fcntl
except ImportError:  # not a POSIX system: two sweeps at once are then the user's to avoid
    fcntl = None  # type: ignore[assignment]

SCHEMA_VERSION = "1.0"
JOURNAL_NAME = "observations.jsonl"
_KEPT = 5


def sweep_key(**parts: Any) -> str:
    """A key from JSON values: equal parts give equal keys, in whatever order."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sweeps_directory() -> Path:
    """Where journals live: $ESSM_CACHE/sweeps, or the user's cache directory."""
    if os.environ.get("ESSM_CACHE"):
        return Path(os.environ["ESSM_CACHE"]) / "sweeps"
    from platformdirs import user_cache_dir  # of the compiler's extra: a device has no sweeps

    return Path(user_cache_dir("essm-deploy", appauthor=False)) / "sweeps"


class Journal:
    """An open sweep. `resumed`: how many measurements were found of a sweep of the same key that did not end.

    `damaged`: how many lines of it could not be read.
    """

    def __init__(self, key: str, directory: Path) -> None:
        self.key = key
        self.path = directory / JOURNAL_NAME
        self._records, self.damaged = _recover(self.path, key)
        self._found = frozenset(self._records)
        self.resumed = len(self._records)

    def find(self, engine: str, attempt: int = 1) -> Measurement | None:
        """The measurement of `engine` on that attempt, if this sweep has it."""
        return self._records.get((engine, attempt))

    def was_resumed(self, engine: str, attempt: int = 1) -> bool:
        """Whether that measurement is from before this run."""
        return (engine, attempt) in self._found

    def append(self, engine: str, attempt: int, measurement: Measurement) -> None:
        """Write a finished measurement; it is on disk when this returns."""
        record = {"engine": engine, "attempt": attempt, "measurement": measurement.to_json()}
        with _disk_errors(self.path):
            new = not self.path.exists()
            with self.path.open("ab") as stream:
                if new:
                    stream.write(_line({"schema_version": SCHEMA_VERSION, "key": self.key}))
                stream.write(_line(record))
                stream.flush()
                os.fsync(stream.fileno())
            if new:
                _sync_directory(self.path.parent)
        self._records[engine, attempt] = measurement

    def measured(self, engine: str, attempt: int, measure: Callable[[], Measurement]) -> Measurement:
        """The recorded measurement, or a new one, which is then recorded."""
        found = self.find(engine, attempt)
        if found is None:
            found = measure()
            self.append(engine, attempt, found)
        return found

    def finish(self) -> Path | None:
        """The sweep has its answer: a later one measures afresh. Returns where the record now is, None if it is empty."""
        if not self.path.exists():
            return None
        with _disk_errors(self.path):
            finished = self.path.with_name(f"finished-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.jsonl")
            self.path.replace(finished)
            for old in sorted(self.path.parent.glob("finished-*.jsonl"))[:-_KEPT]:
                old.unlink(missing_ok=True)
        return finished


@contextmanager
def open_journal(key: str, *, root: Path | None = None) -> Iterator[Journal]:
    """The journal for `key`, held against a second sweep of the same key until the block ends.

    An unfinished sweep is resumed. Call `finish` when there is an answer; without it, the next run resumes. Raises
    UsageError if another process holds it.
    """
    directory = (root or sweeps_directory()) / key
    with _disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        _hold(lock, directory)
        yield Journal(key, directory)


def _hold(lock: IO[str], directory: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when the process ends, however it ends
    except BlockingIOError:
        raise UsageError(f"{directory} is in use: another essm-deploy measures the same thing; wait for it to end") from None


def _recover(path: Path, key: str) -> tuple[dict[tuple[str, int], Measurement], int]:
    """The sound records of an unfinished sweep, and how many lines were not; a journal of another key is set aside."""
    if not path.exists():
        return {}, 0
    with _disk_errors(path):
        content = path.read_bytes() if path.is_file() else b""
        lines = content.splitlines(keepends=True)
        if not lines or not _is_header(lines[0], key):
            path.replace(path.with_suffix(".unreadable"))
            return {}, len(lines)
        read = [(line, _record(line)) for line in lines[1:]]
        sound = [(line, record) for line, record in read if record is not None]
        if len(sound) < len(read):
            _rewrite(path, [lines[0], *(line for line, _ in sound)])
        return dict(record for _, record in sound), len(read) - len(sound)


def _rewrite(path: Path, lines: list[bytes]) -> None:
    """The journal with these lines alone, whole or not at all."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as stream:
        stream.writelines(lines)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
    _sync_directory(path.parent)


def _is_header(line: bytes, key: str) -> bool:
    header = _decoded(line)
    return header is not None and header.get("key") == key and header.get("schema_version") == SCHEMA_VERSION


def _record(line: bytes) -> tuple[tuple[str, int], Measurement] | None:
    record = _decoded(line)
    if record is None:
        return None
    try:
        return (str(record["engine"]), int(record["attempt"])), Measurement.from_json(record["measurement"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _decoded(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = parse_json(line.decode("utf-8"), "the journal")
    except (UnicodeDecodeError, BundleError):
        return None
    return value if isinstance(value, dict) else None


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("utf-8") + b"\n"


def _sync_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot; the file itself is synced
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror or error}: free space or set ESSM_CACHE to another directory") from None
