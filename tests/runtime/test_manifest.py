from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essm_deploy.errors import BundleError, EssmError, IntegrityError
from essm_deploy.runtime import Manifest, StreamInfo, read_manifest, verify_files
from tests.runtime.tiny import document, write_bundle

Mutation = Callable[[dict[str, Any]], Any]


def small_document() -> dict[str, Any]:
    return document(dict.fromkeys(("graphs/k2.onnx", "graphs/k8.onnx", "graphs/weights.bin"), "a" * 64))


def change(bundle: Path, mutate: Mutation) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    mutate(content)
    path.write_text(json.dumps(content))


def test_a_manifest_survives_the_round_trip_through_json() -> None:
    manifest = Manifest.from_json(small_document())
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_a_valid_bundle_is_read_and_verified(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    verify_files(bundle, manifest)
    assert manifest.model.id2label == ("no", "yes")
    assert manifest.engine("k8-sequence").inputs[1].maximum == 6


def test_what_an_engine_was_made_of_and_what_was_proved_of_it_is_kept() -> None:
    content = small_document()
    engine = content["engines"][0]
    assert not {"graph", "proof"} & Manifest.from_json(content).to_json()["engines"][0].keys()
    engine.update(graph=["graphs/k2.onnx", "graphs/weights.bin"], proof={"tf32": False})
    read = Manifest.from_json(content)
    assert read.engines[0].graph == ("graphs/k2.onnx", "graphs/weights.bin")
    assert read.engines[0].proof == {"tf32": False}
    assert Manifest.from_json(json.loads(json.dumps(read.to_json()))) == read


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (lambda d: d["engines"][0].update(graph=["graphs/other.onnx"]), r"graphs/other\.onnx"),
        (lambda d: d["engines"][0].update(graph=["../k2.onnx"]), "inside the bundle"),
        (lambda d: d["engines"][0].update(graph="graphs/k2.onnx"), "an array"),
        (lambda d: d["engines"][0].update(proof=["tf32"]), "an object"),
        (lambda d: d.update(schema_version="2.0"), "newer"),
        (lambda d: d.update(schema_version="0.9"), "build the bundle again"),
        (lambda d: d.update(schema_version=1.0), "schema_version"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.pop("budgets"), "budgets"),
        (lambda d: d.update(overflow="wrap"), "window, restart, refuse"),
        (lambda d: d.update(default="k9"), "k9"),
        (lambda d: d["target"].pop("name"), "target"),
        (lambda d: d["engines"].append(d["engines"][0]), "listed twice"),
        (lambda d: d["budgets"].append(d["budgets"][0]), "listed twice"),
        (lambda d: d["engines"][0].update(budget="k3"), "k3"),
        (lambda d: d["engines"][0].update(kind="stream"), "chunk"),
        (lambda d: d["engines"][0].update(files=[]), "no file"),
        (lambda d: d["engines"][0].update(files=["graphs/other.onnx"]), r"graphs/other\.onnx"),
        (lambda d: d["engines"][0].update(profile={"p95": 1}), "basis"),
        (lambda d: d["engines"][0]["inputs"][0].update(dtype="float31"), "float32"),
        (lambda d: d["engines"][0]["inputs"][0].update(shape=[0]), "shape"),
        (lambda d: d["engines"][0]["inputs"].append(d["engines"][0]["inputs"][0]), "listed twice"),
        (lambda d: d["budgets"][0].update(axes={"k": 0}), r"axes\.k"),
        (lambda d: d["model"].update(id2label={"0": "no", "2": "yes"}), "gaps"),
        (lambda d: d["files"].update({"graphs/k2.onnx": "xyz"}), "sha256"),
    ],
)
def test_what_does_not_hold_together_is_refused_by_name(mutate: Mutation, said: str) -> None:
    content = small_document()
    mutate(content)
    with pytest.raises(BundleError, match=said):
        Manifest.from_json(content)


STREAM = {"length": 8, "overflow": "window", "ring": True, "state": "a" * 64, "anchor": "anchor", "anchor_every": 2}


def streaming_document() -> dict[str, Any]:
    """Two stream engines and their anchor."""
    content = small_document()
    for engine in content["engines"]:
        engine.update(kind="stream", chunk=1, stream=dict(STREAM))
    content["engines"].append(dict(engine, id="anchor", kind="anchor", chunk=None, stream=None))
    return content


def test_stream_and_anchor_engines_survive_the_round_trip_and_sequence_engines_are_written_as_before() -> None:
    manifest = Manifest.from_json(streaming_document())
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert [engine.kind for engine in manifest.engines] == ["stream", "stream", "anchor"]
    assert manifest.engines[0].stream == StreamInfo(8, "window", True, "a" * 64, anchor="anchor", anchor_every=2)
    assert "stream" not in Manifest.from_json(small_document()).engines[0].to_json()


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (lambda d: d["engines"][0].pop("stream"), "'stream' object"),
        (lambda d: d["engines"][0].update(chunk=None), "chunk"),
        (lambda d: d["engines"][0].update(chunk=0), "chunk"),
        (lambda d: d["engines"][2].update(chunk=1), "chunk"),
        (lambda d: d["engines"][2].update(stream=STREAM), "'stream' object"),
        (lambda d: d["engines"][0].update(kind="sequence", chunk=None), "'stream' object"),
        (lambda d: d["engines"][0]["stream"].update(surprise=1), "surprise"),
        (lambda d: d["engines"][0]["stream"].update(length=0), "length"),
        (lambda d: d["engines"][0]["stream"].update(overflow="wrap"), "window, restart, refuse"),
        (lambda d: d["engines"][0]["stream"].update(ring=1), "'ring' is 1, expected true or false"),
        (lambda d: d["engines"][0]["stream"].update(state="A" * 64), "lower-case hex"),
        (lambda d: d["engines"][0]["stream"].update(anchor="k2-sequence"), "no anchor engine"),
        (lambda d: d["engines"][0]["stream"].update(anchor=7), "'anchor' is 7"),
        (lambda d: d["engines"][0]["stream"].update(anchor=None), "anchor_every together"),
        (lambda d: d["engines"][0]["stream"].update(anchor_every=0), "anchor_every"),
        (lambda d: d["engines"][0]["stream"].update(ring=False), "and a ring"),
        (lambda d: d["engines"][0]["stream"].update(restart="swap"), "exactly if overflow is restart"),
        (lambda d: d["engines"][0]["stream"].update(overflow="refuse"), "'ring' is true"),
        (lambda d: d.update(overflow="refuse"), "has the overflow 'window', the model another"),
        (lambda d: d.update(default="anchor"), "'anchor' is not listed as a sequence or stream engine"),
    ],
)
def test_a_stream_that_does_not_hold_together_is_refused_by_name(mutate: Mutation, said: str) -> None:
    content = streaming_document()
    mutate(content)
    with pytest.raises(BundleError, match=said):
        Manifest.from_json(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"restart": None}, "exactly if overflow is restart"),
        ({"restart": "both"}, "swap, zero"),
        ({"length": 9}, "an even number"),
    ],
)
def test_a_restart_says_how_and_cuts_at_half_of_an_even_length(change: dict[str, Any], said: str) -> None:
    content = streaming_document()
    content["overflow"] = "restart"
    plain = {"length": 8, "overflow": "restart", "ring": False, "state": "a" * 64, "restart": "zero"}
    for engine in content["engines"][:2]:
        engine["stream"] = dict(plain)
    stream = Manifest.from_json(content).engines[0].stream
    assert stream is not None
    assert stream.cut == 4
    content["engines"][0]["stream"].update(change)
    with pytest.raises(BundleError, match=said):
        Manifest.from_json(content)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a\\b", "C:x", "", "a//b", "./a", "a\0b", "a\nb", "\ud800"]
)
def test_a_path_that_could_leave_the_bundle_is_refused(path: str) -> None:
    content = small_document()
    content["files"][path] = "a" * 64
    with pytest.raises(BundleError):
        Manifest.from_json(content)


def test_a_newer_minor_version_may_add_keys() -> None:
    content = small_document() | {"schema_version": "1.7", "later": True}
    content["engines"][0]["later"] = 1
    assert Manifest.from_json(content).schema_version == "1.7"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"a": 1, "a": 2}',
        '{"schema_version": NaN}',
        '{"schema_version": 1e999}',
        "[" * 100_000,
        '{"a": ' + "9" * 10_000 + "}",
    ],
)
def test_what_is_not_strict_json_is_a_bundle_error_in_one_line(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text)
    with pytest.raises(BundleError) as caught:
        read_manifest(bundle)
    assert "\n" not in str(caught.value)


def test_a_manifest_that_is_not_utf8_or_huge_is_refused(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BundleError, match="UTF-8"):
        read_manifest(bundle)
    with path.open("wb") as stream:
        stream.truncate(17 * 2**20)
    with pytest.raises(BundleError, match="16 MiB"):
        read_manifest(bundle)


def test_a_directory_without_a_manifest_is_not_a_bundle(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BundleError, match="not a bundle"):
            read_manifest(path)


def test_one_flipped_byte_is_found_and_named(bundle: Path) -> None:
    path = bundle / "graphs" / "weights.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"graphs/weights\.bin"):
        verify_files(bundle, read_manifest(bundle))


def test_a_missing_file_is_named(bundle: Path) -> None:
    (bundle / "graphs" / "k2.onnx").unlink()
    with pytest.raises(IntegrityError, match=r"graphs/k2\.onnx"):
        verify_files(bundle, read_manifest(bundle))


def test_a_link_that_leaves_the_bundle_is_refused_even_with_the_right_bytes(bundle: Path, tmp_path: Path) -> None:
    path = bundle / "graphs" / "weights.bin"
    outside = tmp_path / "weights.bin"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(IntegrityError, match="leaves the bundle"):
        verify_files(bundle, read_manifest(bundle))


def test_a_link_to_itself_and_a_pipe_are_refused(bundle: Path) -> None:
    path = bundle / "graphs" / "weights.bin"
    path.unlink()
    path.symlink_to("weights.bin")
    with pytest.raises(IntegrityError):
        verify_files(bundle, read_manifest(bundle))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="regular"):
        verify_files(bundle, read_manifest(bundle))


def test_a_bundle_may_be_reached_through_a_link(bundle: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bundle)
    verify_files(link, read_manifest(link))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


@settings(deadline=None)
@given(st.data(), JSON, st.booleans())
def test_a_mutated_manifest_is_read_or_refused_but_never_crashes(data: st.DataObject, replacement: Any, streams: bool) -> None:
    content: Any = {"root": streaming_document() if streams else small_document()}
    *path, last = data.draw(st.sampled_from(places(content)[1:]))
    holder = content
    for key in path:
        holder = holder[key]
    holder[last] = replacement
    message = ""
    try:
        manifest = Manifest.from_json(content["root"])
        assert Manifest.from_json(manifest.to_json()) == manifest
    except EssmError as error:
        message = str(error)
    assert "\n" not in message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_manifest_file_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, position: float, byte: int, cut: bool
) -> None:
    root = write_bundle(tmp_path_factory.mktemp("damaged") / "bundle")
    path = root / "manifest.json"
    content = bytearray(path.read_bytes())
    index = int(position * len(content))
    content[index] = byte
    path.write_bytes(content[:index] if cut else content)
    message = ""
    try:
        verify_files(root, read_manifest(root))
    except EssmError as error:
        message = str(error)
    assert "\n" not in message
