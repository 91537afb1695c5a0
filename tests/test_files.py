"""Files and directories appear whole or not at all, and what killed runs left behind is removed, but nothing of a live one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from essm_deploy import files
from essm_deploy.atomic import whole_file
from essm_deploy.errors import BuildError
from essm_deploy.files import replace_directory, staging, write_bytes

HOLD = """
import sys
from pathlib import Path
from essm_deploy.files import staging
with staging(Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "weights.bin").write_bytes(bytes(9))
    print(folder, flush=True)
    sys.stdin.readline()
"""
SWAP = """
import os, signal, sys
from pathlib import Path
from essm_deploy import files
rename, left = Path.rename, int(sys.argv[2])
def fragile(path, target):
    global left
    if path.name in ("new", "out") and not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= path.name in ("new", "out")
    return rename(path, target)
Path.rename = fragile
files.replace_directory(Path(sys.argv[1]), lambda root: (root / "a").write_text("new") and None, ours=lambda path: True)
"""


@contextlib.contextmanager
def holding(folder: Path, prefix: str = "") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a staging directory."""
    command = [sys.executable, "-c", HOLD, str(folder), prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def killed(folder: Path, prefix: str = "") -> Path:
    """What a killed process left in `folder`."""
    with holding(folder, prefix) as (_, left):
        pass
    assert (left / "weights.bin").is_file()
    return left


def text_in(name: str) -> Callable[[Path], None]:
    def fill(root: Path) -> None:
        (root / name).write_text(name)

    return fill


def failing(root: Path) -> None:
    (root / "half").write_text("half")
    raise OSError(28, "No space left on device")


def anything(path: Path) -> bool:
    return True


def test_a_staging_directory_is_private_and_goes_with_its_block(tmp_path: Path) -> None:
    with staging(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_run_left_goes_and_what_a_live_one_holds_stays(tmp_path: Path) -> None:
    left = killed(tmp_path)
    with holding(tmp_path) as (_, held), staging(tmp_path) as ours:
        assert not left.exists()
        with staging(tmp_path):  # a second one of this process
            assert (held / "weights.bin").is_file()
            assert ours.is_dir()


def test_nothing_is_touched_that_is_named_otherwise_or_is_no_directory(tmp_path: Path) -> None:
    left = killed(tmp_path, ".out.")
    (tmp_path / "target" / "old").mkdir(parents=True)
    kept = ["essm-deploy-locks", "essm-deploy-mine", f"a{left.name}", f"{left.name}.new", ".out.2.essm-deploy-0123456789abcdef"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.essm-deploy-0123456789abcdef").symlink_to(tmp_path / "target")
    (tmp_path / ".out.essm-deploy-fedcba9876543210").write_text("a file")
    before = {path.name for path in tmp_path.iterdir()} - {left.name}
    replace_directory(tmp_path / "out", text_in("a"), ours=anything)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "out"}
    assert (tmp_path / "target" / "old").is_dir()


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(tmp_path)

    def refused(handle: int, how: int) -> None:
        raise OSError(9, "Bad file descriptor")  # NFS, of a directory

    monkeypatch.setattr(files.fcntl, "flock", refused)
    with staging(tmp_path) as folder:
        assert folder.is_dir()
    assert not folder.exists()
    monkeypatch.undo()
    monkeypatch.setattr(files, "fcntl", None)
    with staging(tmp_path) as folder:
        assert folder.is_dir()
    assert [*tmp_path.iterdir()] == [left]


def test_runs_that_begin_at_once_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    lost: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(60):
                with staging(tmp_path) as folder:
                    (folder / "weights.bin").write_bytes(b"x")
                    assert (folder / "weights.bin").read_bytes() == b"x"
        except BaseException as error:
            lost.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert [*tmp_path.iterdir()] == []


def test_a_directory_is_replaced_and_what_a_killed_run_left_beside_it_goes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replace_directory(out, text_in("a"), ours=anything)
    killed(tmp_path, ".out.")
    other = killed(tmp_path, ".out2.")  # of another output
    replace_directory(out, text_in("b"), ours=anything)
    assert [path.name for path in out.iterdir()] == ["b"]
    assert out.stat().st_mode & 0o777 == 0o755
    assert {*tmp_path.iterdir()} == {out, other}


def test_a_fill_that_fails_leaves_the_old_directory_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replace_directory(out, text_in("a"), ours=anything)
    with pytest.raises(BuildError, match="No space left on device"):
        replace_directory(out, failing, ours=anything)
    assert [path.name for path in out.iterdir()] == ["a"]
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("renamed", ["out", "new"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["Ctrl-C", "full"])
def test_a_swap_that_fails_or_is_interrupted_leaves_one_whole_directory(
    error: BaseException, done: bool, renamed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename, failed = tmp_path / "out", Path.rename, list[Path]()
    replace_directory(out, text_in("a"), ours=anything)

    def fragile(path: Path, target: Path) -> Path:
        if path.name != renamed or failed:
            return rename(path, target)
        failed.append(rename(path, target) if done else path)
        raise error

    monkeypatch.setattr(Path, "rename", fragile)
    with pytest.raises((KeyboardInterrupt, BuildError)):
        replace_directory(out, text_in("b"), ours=anything)
    assert [path.name for path in out.iterdir()] == ["b" if done and renamed == "new" else "a"]
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("renames", [0, 1])
def test_a_run_that_is_killed_while_it_swaps_loses_nothing(tmp_path: Path, renames: int) -> None:
    out = tmp_path / "out"
    replace_directory(out, text_in("a"), ours=anything)
    done = subprocess.run([sys.executable, "-c", SWAP, str(out), str(renames)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert out.exists() == (renames == 0)
    assert len([*tmp_path.iterdir()]) == 2 - renames
    with pytest.raises(BuildError):
        replace_directory(out, failing, ours=anything)
    assert [path.name for path in out.iterdir()] == ["a"]
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "record.json"
    write_bytes(path, b"old")

    def write() -> None:
        with whole_file(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_can_be_read_by_others_unless_it_is_private(tmp_path: Path) -> None:
    for name, mode in (("public", 0o644), ("private", 0o600)):
        with whole_file(tmp_path / name, mode) as file:
            file.write(b"x")
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


def test_the_disks_refusal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gone/a: cannot write \(No such file or directory\)"):
        write_bytes(tmp_path / "gone" / "a", b"")
    assert [*tmp_path.iterdir()] == []
