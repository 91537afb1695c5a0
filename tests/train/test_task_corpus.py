"""Texts of any kind on disk, and data sets that are streamed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from essm_deploy.errors import EssmError, InputError, UnavailableError
from essm_train.settings import ByteSettings, load_recipe
from essm_train.tasks.bytes import Bytes
from essm_train.tasks.corpus import read_documents
from essm_train.tasks.streaming import Streamed, evaluation_cache, open_stream
from essm_train.tasks.text import read_text

TEXTS = [f"document {i}: " + "x" * (i % 7) for i in range(60)]


def text(array: np.ndarray) -> str:
    return array.tobytes().decode()


def write_lines(path: Path, texts: list[str] = TEXTS) -> Path:
    data = "".join(json.dumps({"text": text, "meta": 1}) + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines_are_joined_by_newlines(tmp_path: Path, name: str) -> None:
    data, starts = read_documents(write_lines(tmp_path / name))
    assert text(data) == "\n".join(TEXTS)
    assert all(text(data[start:]).startswith(f"document {i}:") for i, start in enumerate(starts))


def test_no_document_is_in_two_splits(tmp_path: Path) -> None:
    parts = read_text(write_lines(tmp_path / "a.jsonl"), 8)
    for split in ("val", "test"):
        assert text(parts[split]).startswith("document ")
    assert text(np.concatenate([parts.train, parts.val, parts.test])) == "\n".join(TEXTS)


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for i in (1, 0, 2):
        (tmp_path / f"{i}.txt").write_text(f"file {i}")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert text(read_documents(tmp_path)[0]) == "file 0\nfile 1\nfile 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": "b', "line 2 is not JSON in UTF-8"),
        (b'{"text": "a"}\n{"content": "b"}\n', r"line 2 holds \['content'\]; expected an object with the string 'text'"),
        (b'["a"]\n', "line 1 holds list; expected an object"),
        (b'{"text": "caf\xe9"}\n', "line 1 is not JSON in UTF-8"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_documents(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


def test_more_text_than_fits_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("essm_train.tasks.corpus.MAX_BYTES", 500)
    with pytest.raises(InputError, match=r"more than 500 bytes of text; stream it"):
        read_documents(write_lines(tmp_path / "a.jsonl"))


def test_without_pyarrow_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnavailableError, match=r"pip install 'essm-deploy\[corpora\]'"):
        read_documents(tmp_path / "a.parquet")


def test_parquet_is_read_and_a_broken_one_named(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": TEXTS, "id": list(range(60))}), tmp_path / "a.parquet")
    assert text(read_documents(tmp_path / "a.parquet")[0]) == "\n".join(TEXTS)
    parquet.write_table(arrow.table({"content": TEXTS}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"columns \['content'\]; expected the column 'text'"):
        read_documents(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:200])
    with pytest.raises(InputError, match=r"not a whole Parquet file .*is the download complete"):
        read_documents(tmp_path / "c.parquet")


# Streams


class Rows:
    """A stand-in for a streamed data set: rows by split, shuffled by the seed, and a count of those that were read."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.fail_after, self.read = fail_after, 0

    def __call__(self, split: str, seed: int | None) -> Iterator[Any]:
        order = range(60) if seed is None else np.random.default_rng(seed).permutation(60)
        for i in order:
            if self.read == self.fail_after:
                raise ConnectionError("the server hung up")
            self.read += 1
            yield {"text": f"{split} {TEXTS[i]}"}


def test_a_block_is_a_function_of_the_seed_and_the_step() -> None:
    stream, again = (Streamed("set", Rows(), 100) for _ in range(2))
    blocks = [text(stream.block(step, 50, 7)) for step in range(40)]
    assert text(again.block(23, 50, 7)) == blocks[23]
    assert text(again.block(4, 50, 7)) == blocks[4]
    order = np.random.default_rng(7).permutation(60)
    assert "".join(blocks[:8]) == "".join(f"train {TEXTS[i]}\n" for i in order)[:400]


def test_the_stream_begins_anew_in_another_order_where_it_ends() -> None:
    stream = Streamed("set", Rows(), 100)
    size = sum(len(f"train {text}\n") for text in TEXTS)
    first, second = text(stream.block(0, size, 7)), text(stream.block(1, size, 7))
    assert first != second
    assert sorted(first.splitlines()) == sorted(second.splitlines())


def test_what_is_judged_is_read_once_and_never_changes() -> None:
    first = Streamed("set", Rows(), 200)
    assert text(first.val) == "\n".join(f"validation {text}" for text in TEXTS)[:200]
    assert text(first.test).startswith("test document 0")
    assert len(list(evaluation_cache().glob("*.bin"))) == 2
    rows = Rows()
    np.testing.assert_array_equal(Streamed("set", rows, 200).val, first.val)
    assert rows.read == 0


def test_a_stream_that_breaks_off_is_one_line() -> None:
    stream = Streamed("set", Rows(), 100)
    stream.source = Rows(fail_after=3)
    with pytest.raises(EssmError, match=r"hf:set: the stream broke off .the server hung up.; the same command goes on"):
        stream.block(0, 10**5, 0)


def test_rows_without_text_are_named() -> None:
    with pytest.raises(InputError, match=r"a row holds \['content'\]; expected the string 'text'"):
        Streamed("set", lambda split, seed: [{"content": "x"}], 100)


def test_a_task_over_a_stream_batches_and_judges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("essm_train.tasks.bytes.open_stream", lambda name, size: Streamed(name, Rows(), size))
    (tmp_path / "recipe.toml").write_text(
        "[text]\nseq_len = 64\nshort_len = 32\nval_bytes = 128\n"
        "[train]\nbatch_size = 2\n[model]\nk_max = 2\n[budgets]\ntrained = [2]\n"
    )
    settings = load_recipe(ByteSettings, "bytes", tmp_path / "recipe.toml")
    task = Bytes(Path("hf:set"), settings, torch.device("cpu"))
    assert task.samples("val") == 128
    batch = task.batch(0)
    assert batch.inputs.shape == (4, 32)
    assert bytes((batch.targets.flatten() - 2).tolist()) == bytes(task.text.block(0, 128, settings.train.seed))


def test_without_datasets_streaming_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UnavailableError, match=r"hf:cerebras/SlimPajama-627B: .*pip install 'essm-deploy\[corpora\]'"):
        open_stream("cerebras/SlimPajama-627B", 100)


@pytest.mark.slow
def test_a_folder_is_streamed_by_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for split in ("train", "validation", "test"):
        write_lines(tmp_path / "set" / f"{split}.jsonl", [f"{split} {text}" for text in TEXTS])
    stream = open_stream(str(tmp_path / "set"), 200)
    assert text(stream.val).startswith("validation document 0")
    blocks = [text(stream.block(step, 100, 3)) for step in range(5)]
    assert text(open_stream(str(tmp_path / "set"), 200).block(4, 100, 3)) == blocks[4]
    lines = "".join(blocks).splitlines()[:-1]
    assert {line.removeprefix("train ") for line in lines} <= set(TEXTS)
    assert [line.removeprefix("train ") for line in lines] != TEXTS[: len(lines)]
