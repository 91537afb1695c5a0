"""A checkpoint is read as it was written, sliced by prefix, and refused with one line when it lies."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from essm_deploy.checkpoint import TENSORS_FILE, TensorSpec, read_checkpoint, write_checkpoint
from essm_deploy.errors import CheckpointError, OutputError, UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.slicing import bank_sha256
from essm_deploy.families.es_ssm.tensors import tensor_table
from tests.checkpoints import KEYWORDS, make_checkpoint, random_tensors


def edit_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_the_library_reads_what_we_write(keywords: Path) -> None:
    ours, theirs = open_checkpoint(keywords).tensors, load_file(keywords / TENSORS_FILE)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_tensors_are_mapped_not_loaded_and_cannot_be_written(keywords: Path) -> None:
    tensor = open_checkpoint(keywords).tensor("layers.0.ffn.up.weight")
    assert not tensor.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensor[0] = 1


@pytest.mark.parametrize("budget", range(1, 9))
def test_a_slice_is_a_prefix_byte_for_byte_and_a_checkpoint_of_its_own(keywords: Path, tmp_path: Path, budget: int) -> None:
    whole = open_checkpoint(keywords)
    piece = family_of(whole).slice(whole, budget)
    write_checkpoint(tmp_path / "piece", piece.config, piece.tensors, piece.quality, piece.card)
    again = open_checkpoint(tmp_path / "piece")
    assert again.config["k_max"] == budget
    for name, tensor in again.tensors.items():
        parent = whole.tensor(name)
        assert parent.tobytes()[: tensor.nbytes] == tensor.tobytes()
        assert tensor.shape == parent.shape or (tensor.shape[0] == budget and tensor.shape[1:] == parent.shape[1:])


def test_a_slice_keeps_the_quality_of_the_budgets_it_can_still_be_cut_to(keywords: Path) -> None:
    whole = open_checkpoint(keywords)
    piece = family_of(whole).slice(whole, 5)
    assert piece.config["budgets"] == [2, 4, 5]
    assert piece.quality is not None
    assert piece.quality["budgets"] == {"2": 0.80, "4": 0.90}


@pytest.mark.parametrize("budget", [0, -1, 9])
def test_a_budget_out_of_range_is_refused(keywords: Path, budget: int) -> None:
    whole = open_checkpoint(keywords)
    with pytest.raises(UsageError, match="expected 1 to 8"):
        family_of(whole).slice(whole, budget)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_max": 0}, "k_max"),
        ({"budgets": [2, 9]}, "budget 9 is above k_max 8"),
        ({"budgets": [4, 2]}, "ascend"),
        ({"budgets": []}, "budgets"),
        ({"model_type": "mamba"}, "'mamba'; known: es_ssm"),
        ({"model_type": ["es_ssm"]}, "known: es_ssm"),
        ({"format_version": "2.0"}, "newer than 1.0"),
        ({"format_version": 1}, "format_version"),
        ({"format_version": ...}, "format_version"),
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 17}, "shape"),
        ({"vocab_size": 30}, "exactly one of vocab_size and input_size"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": None}, "needs id2label"),
        ({"gate": "softmax"}, "gate"),
        ({"overflow": "restart", "seq_len": 23}, "halves"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"bank": {"kind": "exact", "sha256": "0" * 64}}, "do not hash"),
        ({"bank": {"kind": "guess", "sha256": "0" * 64}}, "bank.kind"),
    ],
)
def test_a_config_that_does_not_hold_together_is_one_clear_line(keywords: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(keywords, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(keywords)
    assert "\n" not in str(caught.value)


def test_keys_of_a_newer_minor_version_are_ignored(keywords: Path) -> None:
    edit_config(keywords, format_version="1.7", something_new=True)
    assert open_checkpoint(keywords).config["something_new"] is True


def damaged(change: str) -> dict[str, Any]:
    tensors = random_tensors(KEYWORDS)
    name = "layers.1.ffn.down.bias"
    if change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors["layers.9.extra"] = tensors[name]
    elif change == "shape":
        tensors[name] = tensors[name][:-1]
    elif change == "dtype":
        tensors[name] = tensors[name].astype(np.float64)
    else:
        tensors[name] = tensors[name].copy()
        tensors[name][3] = np.nan if change == "nan" else np.inf
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing, first 'layers.1.ffn.down.bias'"),
        ("extra", "does not describe, first 'layers.9.extra'"),
        ("shape", r"shape \[15\]; config.json asks \[16\]"),
        ("dtype", "is float64; expected F32"),
        ("nan", "NaN or Inf"),
        ("inf", "NaN or Inf"),
    ],
)
def test_tensors_that_are_not_what_the_config_says_are_named(keywords: Path, tmp_path: Path, change: str, message: str) -> None:
    config = json.loads((keywords / "config.json").read_text())
    write_checkpoint(tmp_path / "bad", config, damaged(change), None, "")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "bad")


def test_a_truncated_file_is_refused(keywords: Path) -> None:
    file = keywords / TENSORS_FILE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="not a sound safetensors file"):
        open_checkpoint(keywords)


def test_half_precision_weights_are_refused_by_name(keywords: Path) -> None:
    from safetensors.numpy import save_file

    tensors = {name: np.array(t) for name, t in load_file(keywords / TENSORS_FILE).items()}
    tensors["norm.bias"] = tensors["norm.bias"].astype(np.float16)
    save_file(tensors, keywords / TENSORS_FILE)
    with pytest.raises(CheckpointError, match=r"norm\.bias is F16"):
        open_checkpoint(keywords)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="pickles are not read"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match="can run code"):
        read_checkpoint(folder / "pytorch_model.bin")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_not_a_json_object_is_refused(keywords: Path, content: bytes) -> None:
    (keywords / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="JSON"):
        open_checkpoint(keywords)


def test_missing_files_are_named(tmp_path: Path, keywords: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint directory"):
        open_checkpoint(tmp_path / "nowhere")
    (keywords / TENSORS_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing"):
        open_checkpoint(keywords)


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="did not write"):
        write_checkpoint(tmp_path, KEYWORDS, random_tensors(KEYWORDS), None, "")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_failed_write_leaves_the_old_checkpoint(keywords: Path) -> None:
    before = {p.name: p.read_bytes() for p in keywords.iterdir()}
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint(keywords, KEYWORDS, {"x": np.zeros(3, np.float16)}, None, "")
    assert {p.name: p.read_bytes() for p in keywords.iterdir()} == before
    assert [p.name for p in keywords.parent.iterdir()] == ["keywords"]


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = make_checkpoint(tmp_path_factory.mktemp("mutated") / "model")
    return path, (path / TENSORS_FILE).read_bytes()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_of_the_header_ends_in_anything_but_a_checkpoint_error(
    whole_file: tuple[Path, bytes], data: st.DataObject
) -> None:
    path, original = whole_file
    header = 8 + int.from_bytes(original[:8], "little")
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), header, 7, 0]))
    (path / TENSORS_FILE).write_bytes(bytes(content[:cut]))
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        pass
    else:
        assert checkpoint.tensors.keys() == random_tensors(KEYWORDS).keys()


@pytest.mark.slow
def test_a_file_of_gigabytes_is_opened_and_sliced_without_being_loaded(tmp_path: Path) -> None:
    """A sparse file stands in for the weights: 4.8 GB that cost no disk, of which the slice takes a fifteenth."""
    sizes = {"hidden_size": 2048, "gate_hidden_size": 8, "intermediate_size": 64, "num_hidden_layers": 8, "k_max": 32}
    config = {**KEYWORDS, **sizes, "seq_len": 40, "budgets": [2, 32]}
    specs = tensor_table(EsSsmConfig.model_validate(config))
    config["bank"] = {"kind": "embedded", "sha256": bank_sha256(np.zeros((32, 40)))}
    path = tmp_path / "large"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    assert sparse_tensors(path / TENSORS_FILE, specs) > 4_000_000_000
    before = anonymous_bytes()
    whole = open_checkpoint(path)
    piece = family_of(whole).slice(whole, 2)
    write_checkpoint(tmp_path / "piece", piece.config, piece.tensors, None, "")
    assert anonymous_bytes() - before < 300_000_000
    assert open_checkpoint(tmp_path / "piece").tensor("layers.7.spectral.projection").shape == (2, 2048, 2048)


def sparse_tensors(path: Path, specs: list[TensorSpec]) -> int:
    """A safetensors file of zeros that were never written; returns its size in bytes."""
    header, offset = {}, 0
    for spec in specs:
        size = math.prod(spec.shape) * (8 if spec.dtype == "F64" else 4)
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + offset)
    return offset


def anonymous_bytes() -> int:
    """What this process holds in memory of its own; mapped files do not count."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024
