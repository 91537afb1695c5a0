"""The program that keeps our files on a device: whole or not there, ours alone, and gone when they are old."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.runtime import cuda, host
from essm_deploy.targets.on_device import store as program
from essm_deploy.targets.on_device.store import Refusal, Service, Store, clean, packages

CONTENT = {"a.onnx": b"graph", "deep/weights.bin": b"weights" * 1000}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(files: dict[str, bytes] = CONTENT) -> dict[str, str]:
    return {name: sha(content) for name, content in files.items()}


def put(store: Store, files: dict[str, bytes] = CONTENT) -> None:
    store.put([(sha(c), len(c)) for c in files.values()], io.BytesIO(b"".join(files.values())))


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def served(*requests: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """The answers of one session, without the greeting."""
    sent = b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in requests)
    writer = io.BytesIO()
    Service(io.BytesIO(sent), writer).serve()
    return [json.loads(line) for line in writer.getvalue().splitlines()][1:]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "ours").mkdir(mode=0o700)
    return tmp_path / "ours"


def test_content_is_stored_once_and_named_often(base: Path) -> None:
    store = Store(str(base))
    put(store)
    first = Path(store.root(names(), compile=False)["root"])
    second = Path(store.root({"b.onnx": sha(b"graph")}, compile=False)["root"])
    assert {name: (first / name).read_bytes() for name in CONTENT} == CONTENT
    assert (second / "b.onnx").samefile(first / "a.onnx")
    assert store.root(names(), compile=False)["root"] == str(first)


def test_where_there_are_no_hard_links_content_is_copied(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = Store(str(base))
    put(store)
    root = Path(store.root(names(), compile=False)["root"])
    assert (root / "a.onnx").read_bytes() == b"graph"
    (root / "a.onnx").write_bytes(b"other")
    store.root(names(), compile=False)
    assert (root / "a.onnx").read_bytes() == b"graph"


@pytest.mark.parametrize("damage", [b"graph!", b"grapH", b""])
def test_a_file_of_another_size_or_hash_is_missing(base: Path, damage: bytes) -> None:
    put(Store(str(base)))
    (base / "files" / sha(b"graph")).write_bytes(damage)
    store = Store(str(base))
    sizes = {sha(content): len(content) for content in CONTENT.values()}
    assert store.missing(sizes) == {"missing": [sha(b"graph")]}
    put(store, {"a.onnx": b"graph"})
    assert store.missing(sizes) == {"missing": []}


def test_what_is_cut_short_or_damaged_on_the_way_is_not_there(base: Path) -> None:
    store = Store(str(base))
    with pytest.raises(EOFError):
        store.put([(sha(b"graph"), 5)], io.BytesIO(b"gra"))
    with pytest.raises(Refusal, match="sha256"):
        store.put([(sha(b"graph"), 5)], io.BytesIO(b"grapH"))
    assert [*(base / "files").iterdir(), *(base / "incoming").iterdir()] == []


def test_a_full_disk_is_told_before_anything_is_sent(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9 - 2**21, 2**21))
    (answer,) = served({"op": "open", "directory": str(base)}, {"op": "room", "bytes": 2**20})[1:]
    assert answer["ok"] is True
    (answer,) = served({"op": "open", "directory": str(base)}, {"op": "room", "bytes": 2**21})[1:]
    assert (answer["ok"], answer["kind"]) == (False, "disk_full")
    assert f"{2**21} bytes free" in answer["message"]


def test_old_content_makes_room(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    put(Store(str(base)))
    root = Path(Store(str(base)).root(names(), compile=False)["root"])
    age(root, 0.5)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, 2**30 if not root.exists() else 0))
    assert Store(str(base)).room(2**20)["free"] == 2**30


def test_a_disk_that_fills_up_while_it_is_written_to_ends_the_session(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    answers = served(
        {"op": "open", "directory": str(base)},
        {"op": "put", "files": [[sha(b"graph"), 5]]},
        b"graph",
        {"op": "room", "bytes": 1},
    )
    assert [answer["ok"] for answer in answers] == [True, False]
    assert answers[1]["kind"] == "disk_full"
    assert [*(base / "files").iterdir(), *(base / "incoming").iterdir()] == []


def test_what_was_not_used_for_long_is_removed_and_what_is_in_use_stays(base: Path) -> None:
    put(Store(str(base)))
    old = Path(Store(str(base)).root({"a": sha(b"graph")}, compile=False)["root"])
    kept = Path(Store(str(base)).root({"b": sha(CONTENT["deep/weights.bin"])}, compile=False)["root"])
    age(old, 15)
    age(kept, 13)
    Store(str(base))
    assert not old.exists()
    assert kept.exists()
    store = Store(str(base))
    store.root({"b": sha(CONTENT["deep/weights.bin"])}, compile=False)
    age(kept, 15)
    store.prune(14 * 86400.0)
    assert kept.exists()
    store = Store(str(base))
    store.prune(-60.0)  # from a minute ahead all is old
    assert [*(base / "files").iterdir()] == []


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "", "a//b", "."])
def test_a_name_that_leaves_the_directory_is_refused(base: Path, name: str) -> None:
    put(Store(str(base)))
    with pytest.raises(Refusal, match="relative path"):
        Store(str(base)).root({name: sha(b"graph")}, compile=False)
    with pytest.raises(Refusal, match="not a sha256"):
        Store(str(base)).missing({name: 1})


def test_a_directory_that_is_not_ours_is_refused_and_never_cleaned(base: Path, tmp_path: Path) -> None:
    (base / "thesis.tex").write_text("precious")
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(tmp_path)
    file.touch()
    for path, why in [(base, "did not write"), (link, "a link"), (file, "File exists|a file")]:
        with pytest.raises((Refusal, OSError), match=why):
            Store(str(path))
        with pytest.raises(Refusal):
            clean(str(path))
    assert (base / "thesis.tex").read_text() == "precious"


def test_a_directory_that_others_may_write_to_is_refused(base: Path) -> None:
    base.chmod(0o777)
    with pytest.raises(Refusal, match="written by other users"):
        Store(str(base))


def test_clean_removes_what_is_ours_and_says_how_much(base: Path) -> None:
    put(Store(str(base)))
    Store(str(base)).root(names(), compile=False)
    assert clean(str(base))["freed"] >= sum(map(len, CONTENT.values()))
    assert not base.exists()
    assert clean(str(base)) == {"freed": 0}


def test_clean_leaves_what_somebody_else_put_there(base: Path) -> None:
    put(Store(str(base)))
    (base / "thesis.tex").write_text("precious")
    clean(str(base))
    assert [path.name for path in base.iterdir()] == ["thesis.tex"]


def test_modules_are_compiled_before_a_worker_needs_them(base: Path) -> None:
    store = Store(str(base))
    put(store, {"m.py": b"x = 1\n"})
    root = Path(store.root({"m.py": sha(b"x = 1\n")}, compile=True)["root"])
    assert len([*(root / "__pycache__").iterdir()]) == 1


def test_packages_tells_versions_what_is_missing_and_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import no_such_library")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = packages(["PATH", "HOME", "PYTHONPATH"], ["json", "no_such_package", "broken"])
    assert found["packages"] == {"json": "2.0.9", "no_such_package": None, "broken": None}
    assert list(found["problems"]) == ["broken"]
    assert "no_such_library" in found["problems"]["broken"]
    assert packages(["PATH"], ["broken"])["problems"] == {}  # the worker would not have that path either


def test_examine_describes_the_machine_with_the_runtimes_own_words(base: Path) -> None:
    sources = {module.__name__.rpartition(".")[2]: Path(module.__file__ or "").read_text() for module in (host, cuda)}
    found = program.examine(str(base / "not" / "there"), sources)
    assert found["machine"] == host.describe()
    assert found["gpus"] == cuda.describe_devices()
    assert found["disk_free_bytes"] > 0
    assert found["ours_bytes"] == 0
    assert not (base / "not").exists()
