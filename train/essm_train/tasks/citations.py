"""Pairs of papers for Retrieval: Long Range Arena's AAN files, or the pairs of acl_citation_pairs.json.gz.

Every paper's text is held once, as bytes, however many pairs it is in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UsageError
from essm_train.tasks.classification import SPLITS, Labelled
from essm_train.tasks.examples import Index, Rows, TokenRows, pack
from essm_train.tasks.reading import read_text_file
from essm_train.tasks.text import OFFSET

LABELS = ("unrelated", "cites")
FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
LAYOUT = "expected new_aan_pairs.{train,eval,test}.tsv (label, id, id, text, text), or a .json(.gz) of docs and cites"
Pair = tuple[int, str, str]  # label, and the names of two papers


@dataclass(frozen=True)
class PairRows:
    """Pairs [n, 2] of rows of `papers`: a batch of n pairs has 2 n rows, the i-th pair in 2 i and 2 i + 1."""

    papers: TokenRows
    pairs: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Index) -> Rows:
        return self.papers.rows(self.pairs[index].reshape(-1))

    def steps(self, index: Index) -> int:
        return self.papers.steps(self.pairs[index].reshape(-1))


class Library:
    """Papers by name, cut to their first seq_len bytes."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.places: dict[str, int] = {}
        self.texts: list[npt.NDArray[np.uint16]] = []

    def add(self, name: str, text: bytes) -> None:
        """Keep the paper, unless it is there already."""
        if name not in self.places:
            self.places[name] = len(self.texts)
            self.texts.append(np.frombuffer(text[: self.seq_len], np.uint8).astype(np.uint16) + OFFSET)

    def splits(self, pairs: dict[str, list[Pair]]) -> dict[str, PairRows]:
        """The pairs over one table of papers."""
        papers = pack(self.texts, [0] * len(self.texts), np.uint16)
        return {split: self._split(papers, pairs[split]) for split in SPLITS}

    def _split(self, papers: TokenRows, pairs: list[Pair]) -> PairRows:
        places = np.array([[self.places[a], self.places[b]] for _, a, b in pairs], np.int64).reshape(-1, 2)
        return PairRows(papers, places, np.array([label for label, _, _ in pairs], np.int64))


def load_pairs(path: Path, seq_len: int, seed: int = 0) -> Labelled:
    """Either layout. UsageError or InputError where it is neither."""
    fields = {"preprocessing": {"kind": "bytes", "offset": OFFSET}}
    library = Library(seq_len)
    if path.is_dir():
        missing = [name for name in FILES.values() if not (path / name).is_file()]
        if missing:
            raise UsageError(f"{path}: {missing[0]} is missing; {LAYOUT}")
        pairs = {split: list(_from_tsv(path / name, library)) for split, name in FILES.items()}
        return Labelled(library.splits(pairs), LABELS, "AAN in Long Range Arena's files and splits.", fields)
    pairs = _from_json(path, library, np.random.default_rng([seed, 6]))
    source = (
        "ACL papers of scisumm-corpus (CC BY 4.0): pairs of a citing and a cited paper, and as many that are none; no cited "
        "paper is in two splits."
    )
    return Labelled(library.splits(pairs), LABELS, source, fields)


def _from_tsv(path: Path, library: Library) -> Iterator[Pair]:
    """label, id, id, text, text: five columns without a heading, one line in memory at a time."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                columns = line.rstrip(b"\r\n").split(b"\t")
                if len(columns) != 5 or columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise InputError(
                        f"{path}: line {number} has {len(columns)} columns and the label {columns[0][:20]!r}; is the file cut "
                        f"off? {LAYOUT}"
                    )
                first, second = columns[1].decode("latin-1"), columns[2].decode("latin-1")
                library.add(first, columns[3])
                library.add(second, columns[4])
                yield int(columns[0].startswith(b"1")), first, second
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {LAYOUT}") from error


def _from_json(path: Path, library: Library, rng: np.random.Generator) -> dict[str, list[Pair]]:
    """{"docs": {name: text}, "cites": [[citing, cited], ...]}."""
    docs, cites = _document(path)
    for name, text in docs.items():
        library.add(name, text.encode("utf-8"))
    cited = sorted({b for _, b in cites})
    order = [cited[i] for i in rng.permutation(len(cited))]
    first, second = round(0.7 * len(order)), round(0.85 * len(order))
    parts = {"train": order[:first], "val": order[first:second], "test": order[second:]}
    return {split: with_strangers([(a, b) for a, b in cites if b in set(part)], rng) for split, part in parts.items()}


def with_strangers(cites: list[tuple[str, str]], rng: np.random.Generator) -> list[Pair]:
    """Each citation, and its cited paper with another paper of the same split that does not cite it.

    So each cited paper has as many pairs of either kind, and which paper it is says nothing about the label.
    """
    known, citing = set(cites), sorted({a for a, _ in cites})
    pairs: list[Pair] = []
    for a, b in cites:
        strangers = [c for c in citing if (c, b) not in known and c != b]
        pairs.append((1, a, b))
        if strangers:
            pairs.append((0, strangers[int(rng.integers(len(strangers)))], b))
    return pairs


def _document(path: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    text = read_text_file(path, "citation pairs", 2**30)
    try:
        found: Any = json.loads(text)
        docs, cites = found["docs"], [(str(a), str(b)) for a, b in found["cites"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not JSON of docs and cites ({type(error).__name__}: {error}); {LAYOUT}") from error
    unknown = next((name for pair in cites for name in pair if not isinstance(docs.get(name), str)), None)
    if unknown is not None:
        raise InputError(f"{path}: cites names {unknown!r}, whose text is not in docs; {LAYOUT}")
    return docs, sorted(cites)
