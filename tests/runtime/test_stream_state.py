"""Snapshots and files of a stream's state: what comes back is what was there, and nothing else is let in."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import essm_deploy.runtime as runtime
from essm_deploy.errors import InputError
from essm_deploy.runtime.stream_ring import Ring
from tests.runtime.streams import ALL, NAMES, WINDOW, Tiny, assert_same, close_to, data, write_stream_bundle


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> runtime.Model:
    return runtime.load(write_stream_bundle(tmp_path_factory.mktemp("state") / "bundle"), threads=1)


@pytest.fixture
def saved(model: runtime.Model, tmp_path: Path) -> Path:
    """A file that was saved past L."""
    with model.stream() as stream:
        stream.push(data(WINDOW)[0, :13])
        stream.state.save(tmp_path / "state.npz")
    return tmp_path / "state.npz"


@pytest.mark.parametrize("tiny", ALL, ids=NAMES)
@pytest.mark.parametrize("at", [0, 3, 8, 13])
def test_a_stream_goes_on_from_a_snapshot_and_from_a_file_as_if_nothing_had_happened(
    tmp_path: Path, tiny: Tiny, at: int
) -> None:
    model = runtime.load(write_stream_bundle(tmp_path / "bundle", tiny), threads=1)
    inputs, path = data(tiny), tmp_path / "state.npz"
    with model.stream(batch=tiny.batch) as stream, model.stream(batch=tiny.batch) as other:
        if at:
            stream.push(inputs[:, :at])
        snapshot = stream.state.checkpoint()
        stream.state.save(path)
        wanted = [stream.push(inputs[:, at + i][:, None]) for i in range(20)]
        other.push(inputs[:, :9])
        for back in (lambda: stream.state.rollback(snapshot), lambda: stream.state.load(path)):
            back()
            assert stream.position == at
            assert_same(stream.state.checkpoint(), snapshot)
            got = [stream.push(inputs[:, at + i][:, None]) for i in range(20)]
            assert all(map(np.array_equal, got, wanted))
        other.state.load(path)
        assert close_to(other.push(inputs[:, at : at + 20]), wanted[-1])


def test_reset_is_as_before_the_first_token(model: runtime.Model) -> None:
    tokens = data(WINDOW)[0]
    with model.stream() as stream:
        fresh, first = stream.state.checkpoint(), stream.push(tokens[:5])
        stream.push(tokens[5:])
        stream.state.reset()
        assert stream.position == 0
        assert_same(stream.state.checkpoint(), fresh)
        np.testing.assert_array_equal(stream.push(tokens[:5]), first)


def test_a_snapshot_does_not_change_with_the_stream(model: runtime.Model) -> None:
    with model.stream() as stream:
        stream.push([1, 2, 3])
        snapshot = stream.state.checkpoint()
        kept = {name: array.copy() for name, array in snapshot["arrays"].items()}
        stream.push([4] * 20)
        for name, array in kept.items():
            np.testing.assert_array_equal(snapshot["arrays"][name], array)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Tiny(model="1" * 64), "has the model '1111"),
        (Tiny(layout="b" * 64), "has the layout 'bbbb"),
        (Tiny(batch=2), "has the batch 2"),
    ],
)
def test_the_state_of_another_model_layout_or_batch_is_refused(
    model: runtime.Model, tmp_path: Path, other: Tiny, said: str
) -> None:
    path = tmp_path / "state.npz"
    with runtime.load(write_stream_bundle(tmp_path / "other", other)).stream(batch=other.batch) as stream:
        stream.state.save(path)
        snapshot = stream.state.checkpoint()
    with model.stream() as stream:
        stream.push([1, 2])
        before = stream.state.checkpoint()
        for act in (lambda: stream.state.load(path), lambda: stream.state.rollback(snapshot)):
            with pytest.raises(InputError, match=said) as caught:
                act()
            assert "\n" not in str(caught.value)
        assert_same(stream.state.checkpoint(), before)


def test_a_position_beyond_the_streams_bound_and_a_missing_ring_are_refused(model: runtime.Model, saved: Path) -> None:
    with model.stream(max_length=12) as stream, pytest.raises(InputError, match="at token 13, beyond the 12"):
        stream.state.load(saved)
    with model.stream(max_length=8) as short, model.stream() as stream:
        short.push([1])
        snapshot = short.state.checkpoint()
        with pytest.raises(InputError, match="other arrays than ring, state"):
            stream.state.rollback(snapshot)


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["arrays"].update(state=s["arrays"]["state"].astype(np.float64)), r"state as float64 \[2, 1, 2, 3\]"),
        (lambda s: s["arrays"].update(state=s["arrays"]["state"][:, :, :1]), r"state as float32 \[2, 1, 1, 3\]"),
        (lambda s: s["arrays"].update(state=[1.0]), "state as list"),
        (lambda s: s["arrays"]["state"].fill(np.nan), "state that are not finite"),
        (lambda s: s["arrays"].pop("ring"), "other arrays"),
        (lambda s: s["arrays"].update(more=np.zeros(1)), "other arrays"),
        (lambda s: s.pop("arrays"), "other arrays"),
        (lambda s: s.update(position=-1), "position -1"),
        (lambda s: s.update(position=True), "position True"),
        (lambda s: s.update(position=3), r"ring as float32 \[2, 1, 8, 3\]"),
        (lambda s: s.update(version=2), "version 2"),
        (lambda s: s.update(batch=True), "batch True"),
        (lambda s: s.clear(), "format None"),
    ],
)
def test_a_snapshot_that_was_meddled_with_is_refused(model: runtime.Model, change: Change, said: str) -> None:
    with model.stream() as stream:
        stream.push(data(WINDOW)[0, :13])
        before, snapshot = stream.state.checkpoint(), stream.state.checkpoint()
        change(snapshot)
        with pytest.raises(InputError, match=said):
            stream.state.rollback(snapshot)
        assert_same(stream.state.checkpoint(), before)


def rewrite(path: Path, **changes: bytes | None) -> None:
    """Replace, add or (None) drop members of an .npz."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members |= {f"{name}.npy": content or b"" for name, content in changes.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if changes.get(name.removesuffix(".npy"), b"") is not None:
                archive.writestr(name, content)


def npy(array: np.ndarray, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an array that is not there."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"meta": None},
        {"state": None},
        {"more": npy(np.zeros(3))},
        {"meta": npy(np.frombuffer(b"not json", np.uint8))},
        {"meta": npy(np.frombuffer(b"[]", np.uint8))},
        {"meta": npy(np.zeros(1 << 17, np.uint8))},
        {"state": npy(np.array([{}], object), pickled=True)},
        {"state": npy(np.zeros((2, 1, 2, 3)))},
        {"state": npy(np.zeros((2, 1, 2, 3), np.float32))[:-4]},
        {"state": npy(np.zeros((2, 1, 2, 3), np.float32)) + b"more"},
        {"state": npy(np.zeros((2, 1, 2, 3), np.float32)).replace(b"(2, 1, 2, 3)", b"(2, 1, 2, 9)")},
        {"state": b"\x93NUMPY\x01\x00\xff\xff"},
        {"state": b""},
        {"state": header((10**15,))},
        {"state": header((2, 1, 2, 3))},
        {"meta": header((10,))},
    ],
)
def test_a_file_that_lies_is_refused(model: runtime.Model, saved: Path, changes: dict[str, bytes | None]) -> None:
    rewrite(saved, **changes)
    with model.stream() as stream:
        before = stream.state.checkpoint()
        with pytest.raises(InputError) as caught:
            stream.state.load(saved)
        assert "\n" not in str(caught.value)
        assert_same(stream.state.checkpoint(), before)


def test_what_is_no_file_of_ours_is_refused(model: runtime.Model, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**30)
    (tmp_path / "text").write_text("hello")
    with model.stream() as stream:
        for path in (large, tmp_path / "text", tmp_path / "absent", tmp_path):
            with pytest.raises(InputError, match="not a saved stream state"):
                stream.state.load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_loaded_or_refused_but_never_crashes(
    model: runtime.Model, saved: Path, position: float, byte: int, cut: bool
) -> None:
    content = bytearray(saved.read_bytes())
    index = int(position * len(content))
    content[index] = byte
    damaged = saved.with_name("damaged.npz")
    damaged.write_bytes(content[:index] if cut else content)
    message = ""
    with model.stream() as stream:
        try:
            stream.state.load(damaged)
        except InputError as error:
            message = str(error)
        stream.push([1])
    assert "\n" not in message


def test_a_file_is_written_whole_or_not_at_all(model: runtime.Model, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved.read_bytes()
    monkeypatch.setattr(np, "savez", lambda file, **arrays: file.write(b"half") and 1 / 0)
    with model.stream() as stream, pytest.raises(ZeroDivisionError):
        stream.state.save(saved)
    assert saved.read_bytes() == content
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_meta_of_a_file_says_where_it_comes_from(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as file:
        meta = json.loads(bytes(file["meta"]))
        assert file["ring"].shape == (2, 1, 8, 3)
    assert meta["position"] == 13
    assert (meta["format"], meta["model"], meta["batch"]) == ("essm-deploy stream state", "0" * 64, 1)


steps = st.lists(st.one_of(st.integers(1, 5), st.just("align")), max_size=20)


@given(steps, st.integers(1, 12), st.integers(0, 12))
def test_a_ring_holds_the_last_entries_and_can_be_undone(before: list[Any], more: int, turn: int) -> None:
    length = 5
    ring, everything = Ring((2, 1, length, 1), np.zeros((2, 1, length, 1), np.float32)), np.zeros((2, 1, length, 1), np.float32)
    value = 0

    def append(count: int) -> None:
        nonlocal everything, value
        entries = np.arange(value, value + 2 * count, dtype=np.float32).reshape(2, 1, count, 1) + 1
        value += 2 * count
        gone = np.empty_like(entries)
        ring.read(gone)
        np.testing.assert_array_equal(gone, everything[:, :, -length:][:, :, :count])
        ring.append(entries)
        everything = np.concatenate((everything, entries), axis=2)

    for step in before:
        if step == "align":
            np.testing.assert_array_equal(ring.align(), everything[:, :, -length:])
        else:
            append(step)
    total, held, oldest = ring.total, everything, ring.oldest(min(more, length))
    for count in range(more):
        if count == turn:
            ring.align()
        append(1)
    ring.undo(total, oldest)
    np.testing.assert_array_equal(ring.newest(length), held[:, :, -length:])
