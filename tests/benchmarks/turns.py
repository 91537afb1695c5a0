"""Taking turns: contenders in processes of their own, called one after the other, A B C A B C, while the others sleep."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contender import FLOOR, OURS, OURS_MODULE, Contender, Preparation, Setting, preparation
from tests.benchmarks.ratios import fastest

ROOT = Path(__file__).resolve().parents[2]
PAUSE_SECONDS = 0.03
"""Between turns: the thread pools of the one before spin for a few milliseconds before they sleep."""
TURN_MS = 400.0
LONG_MS, SLOW_MS = 700.0, 2000.0
LOOKS, WARM_TURNS = 1, 2
_DROPPED = ("OPENBLAS_CORETYPE", "NVPL_BLAS_DEBUG_CPU_TYPE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")
_OPEN_SECONDS = 900.0
_TURN_SECONDS = 300.0
KEEP_FREED = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"}
"""For peers: freed memory stays with the process. torch asks for tens of megabytes again and again, and the page faults of
fresh memory cost it up to a third of its time. We run as installed."""

Progress = Callable[[str], None]


class DidNotRun(Exception):
    """A contender that cannot take part; the message is the reason, one line."""


@dataclass(frozen=True)
class Pace:
    """How long to go on: rounds until `seconds` are over, but `least` and at most `most`.

    After `hopeless` rounds a peer slower than `beyond` times the fastest one sits out: its ratio is known well enough.
    """

    seconds: float
    least: int = 6
    most: int = 60
    hopeless: int = 3
    beyond: float = 1.5


@dataclass
class Player:
    """A contender that is open. `rounds` has one median a round (None: sat out), `samples` every call."""

    contender: Contender
    process: Process
    settings: dict[str, str]
    seconds: float
    answers: bool = True
    calls: int = 1
    warmup: int = 1
    error: float | None = None
    tried: dict[str, float | str] = field(default_factory=dict)
    rounds: list[float | None] = field(default_factory=list)
    samples: list[list[float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contender.name

    def turn(self) -> float:
        """Median of one turn in milliseconds."""
        times = self._time(self.warmup, self.calls)
        self.samples.append(times)
        return float(np.median(times))

    def calibrate(self) -> float:
        """Milliseconds of a call, the best of a few; decides how many make a turn.

        The first calls of a runtime are not like the others (ONNX Runtime plans its memory during them), and the first two of
        a turn are slow (torch eager: 15% and 10%), whoever had the machine before. A call of a second is its own warm-up.
        """
        best = min(self._time(0, 1))
        if best < SLOW_MS:
            best = min(self._time(2, 3))
        self.calls = 1 if best >= LONG_MS else max(2, min(200, round(TURN_MS / best)))
        self.warmup = 0 if best >= LONG_MS else max(2, self.calls // 4)
        return best

    def _time(self, warmup: int, calls: int) -> list[float]:
        times: list[float] = self.process.ask({"do": "turn", "warmup": warmup, "calls": calls}, _TURN_SECONDS)["ms"]
        return times


class Process:
    """A worker. Every failure of it, a crash or silence included, is DidNotRun."""

    def __init__(self, threads: int, extra: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment(extra),
            preexec_fn=lambda: pin(threads),
        )

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise DidNotRun(f"its process ended with status {self._process.wait()}") from None
        line = self._line(seconds)
        if not line:
            raise DidNotRun(f"its process ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise DidNotRun(reply["error"])
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.close()
                raise DidNotRun(f"no answer within {seconds:.0f} s")
        return self._process.stdout.readline()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what slows numpy down or sets somebody's thread count, and with the repository importable."""
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    return {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'train'}", **(extra or {})}


def pin(threads: int) -> None:
    """Leave the process as many CPUs as it has threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def prepare_all(contenders: Iterable[Contender], setting: Setting, progress: Progress, jobs: int = 2) -> dict[str, str]:
    """Make what the contenders open; returns why something could not be made.

    Ours is made first and alone, since it plans by measuring, and always anew; the peers' exports are kept in `work`.
    """
    failures: dict[str, str] = {}
    wanted = {task.makes: task for contender in contenders if (task := preparation(contender, setting))}
    own = [task for task in wanted.values() if task.module == OURS_MODULE]
    exports = [task for task in wanted.values() if task.module != OURS_MODULE and not task.makes.exists()]
    with ThreadPoolExecutor(jobs) as pool:
        for batch in (own, exports):
            for task, failure in zip(batch, pool.map(make, batch), strict=True):
                if failure:
                    failures[str(task.makes)] = failure
                    progress(f"  {task.makes.name}: {failure}")
    return failures


def make(task: Preparation, extra: Mapping[str, str] | None = None) -> str | None:
    """Run a preparation; the last line of its complaint, or None."""
    command, env = [sys.executable, "-m", task.module, *task.arguments], environment(extra)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0 and task.makes.exists():
        return None
    return _reason(done.stderr) or f"status {done.returncode}"


def open_player(
    contender: Contender, setting: Setting, failures: Mapping[str, str], extra: Mapping[str, str] | None = None
) -> Player:
    """Open a contender in a process of its own. DidNotRun says why it cannot be."""
    task = preparation(contender, setting)
    if task and str(task.makes) in failures:
        raise DidNotRun(failures[str(task.makes)])
    if extra is None:
        extra = {} if contender.installed or contender.peer in (OURS, FLOOR) else KEEP_FREED
    process = Process(setting.threads, extra)
    request = {"do": "open", "setting": setting.to_json(), "contender": vars(contender)}
    try:
        reply = process.ask(request, _OPEN_SECONDS)
    except DidNotRun:
        process.close()
        raise
    settings = reply["settings"] | ({"malloc": "keeps freed memory"} if extra == KEEP_FREED else {})
    return Player(contender, process, settings, reply["seconds"], reply["answers"])


def open_all(
    contenders: Iterable[Contender], setting: Setting, failures: Mapping[str, str], progress: Progress, jobs: int = 2
) -> dict[str, Player | str]:
    """Open everybody, two at a time (a compiler takes its time); by name, or why not."""

    def opened(contender: Contender) -> Player | str:
        try:
            return open_player(contender, setting, failures)
        except DidNotRun as reason:
            progress(f"  {contender.name}: did not run: {reason}")
            return str(reason)

    unique = list(dict.fromkeys(contenders))
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip((c.name for c in unique), pool.map(opened, unique), strict=True))


def keep_best(candidates: Iterable[Contender], opened: Mapping[str, Player | str], progress: Progress) -> Player:
    """Time all spellings of one peer, keep the fastest, close the others. DidNotRun gives every spelling's reason."""
    tried: dict[str, float | str] = {}
    players = {}
    for name in (contender.name for contender in candidates):
        player = opened[name]
        try:
            tried[name] = player.calibrate() if isinstance(player, Player) else f"did not run: {player}"
        except DidNotRun as reason:
            tried[name] = f"did not run: {reason}"
        if isinstance(player, Player) and isinstance(tried[name], float):
            players[name] = player
            progress(f"  {name}: {tried[name]:.2f} ms")
    if not players:
        raise DidNotRun("; ".join(f"{name}: {reason}" for name, reason in tried.items()))
    _look_again(players, tried)
    best = min(players, key=lambda name: float(tried[name]))
    for name, player in players.items():
        if name != best:
            player.process.close()
    players[best].tried = tried
    return players[best]


def _look_again(players: Mapping[str, Player], tried: dict[str, float | str]) -> None:
    """Those close to the fastest take turns, so that a moment's disturbance does not decide."""
    limit = 1.5 * min(float(tried[name]) for name in players)
    close = [name for name in players if float(tried[name]) <= limit]
    for name in close * LOOKS if len(close) > 1 else ():
        tried[name] = min(float(tried[name]), players[name].calibrate())


def play(players: list[Player], peers: Iterable[str], pace: Pace) -> dict[str, str]:
    """Rounds of turns; `peers` are the names that may sit out when they are far behind the fastest of them.

    Returns who failed on the way, and why; they sit out from then on.
    """
    peers, failed, out = set(peers), dict[str, str](), set[str]()
    for player in (p for p in players for _ in range(WARM_TURNS) if p.warmup):
        player.turn()
    for player in players:
        player.samples.clear()
    start = time.perf_counter()
    for number in range(pace.most):
        if number >= pace.least and time.perf_counter() - start > pace.seconds:
            break
        if number >= pace.hopeless:
            out = _hopeless({p.name: p.rounds for p in players if p.name in peers}, pace.beyond)
        for player in players:
            player.rounds.append(None if player.name in out | failed.keys() else _turn(player, failed))
            time.sleep(PAUSE_SECONDS)
    return failed


def _turn(player: Player, failed: dict[str, str]) -> float | None:
    try:
        return player.turn()
    except DidNotRun as reason:
        failed[player.name] = str(reason)
        return None


def _hopeless(times: Mapping[str, list[float | None]], beyond: float) -> set[str]:
    best = fastest(times)
    if best is None:
        return set()
    limit = beyond * float(np.median([v for v in times[best] if v is not None]))
    return {name for name, rounds in times.items() if min((v for v in rounds if v is not None), default=0.0) > limit}


def _reason(text: str) -> str:
    """The last line that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""
