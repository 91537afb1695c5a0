"""Genomes in FASTA, plain or gzipped: bases as token ids, in splits that share no base.

Ids: PAD 0, BOS 1, A 2, C 3, G 4, T 5. Lower case (soft-masked repeats) counts as upper case. Any other letter of the IUPAC
code, mostly N, is an unknown base: it ends a stretch, and no sequence reaches across it. IUPAC: Cornish-Bowden 1985.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError
from essm_train.tasks.reading import read_file

PAD, BOS = 0, 1
BASES = "ACGT"
VOCAB_SIZE = 6
HELD_OUT = 0.05  # of the bases for validation, as many for the test: the last of each stretch that is long enough
EXPECTED = "FASTA: '>' and a name, then lines of bases"

_UNKNOWN = 255
_KINDS = np.full(256, 254, np.uint8)  # letters that no FASTA file of nucleotides has
for _code, _base in enumerate(BASES):
    _KINDS[ord(_base)] = _KINDS[ord(_base.lower())] = _code + 2
_KINDS[ord("U")] = _KINDS[ord("u")] = 5
for _other in "RYSWKMBDHVNX-":
    _KINDS[ord(_other)] = _KINDS[ord(_other.lower())] = _UNKNOWN

Bases = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Genome:
    """Stretches of known bases, as ids 2 to 5. No base is in two splits."""

    train: list[Bases]
    val: list[Bases]
    test: list[Bases]

    def __getitem__(self, split: str) -> list[Bases]:
        part: list[Bases] = getattr(self, split)
        return part

    def count(self, split: str) -> int:
        """Bases of a split."""
        return sum(len(stretch) for stretch in self[split])


def read_genome(path: Path, shortest: int) -> Genome:
    """Read and split a file, or every *.fa, *.fasta and *.fna (.gz) of a folder. InputError if a split is below `shortest`."""
    files = [path] if not path.is_dir() else _files(path)
    stretches = [stretch for file in files for stretch in parse_fasta(file, read_file(file, EXPECTED))]
    genome = split_genome(stretches, shortest)
    fewest = min(genome.count(split) for split in ("train", "val", "test"))
    if fewest < shortest:
        total = sum(map(len, stretches))
        raise InputError(
            f"{path}: {total} known bases are too few; expected a stretch of about {round(shortest / HELD_OUT)}, so that each "
            "split fills a sequence"
        )
    return genome


def parse_fasta(path: Path, data: bytes) -> list[Bases]:
    """Stretches of known bases, in the order of the file. InputError, with the line, for anything that is not FASTA."""
    if not data.lstrip().startswith(b">"):
        raise InputError(f"{path}: begins with {data[:20]!r}; expected {EXPECTED}")
    found = []
    for record in data.lstrip()[1:].split(b"\n>"):
        name, _, body = record.partition(b"\n")
        codes = _KINDS[np.frombuffer(body.translate(None, b"\r\n \t*"), np.uint8)]
        if (codes == 254).any():
            letter = chr(body.translate(None, b"\r\n \t*")[int(np.argmax(codes == 254))])
            label = name.split()[:1] or [b"?"]
            raise InputError(
                f"{path}: record {label[0].decode('latin-1')!r} holds {letter!r}, which is no base; expected {EXPECTED}"
            )
        edges = np.flatnonzero(np.diff(np.concatenate([[True], codes == _UNKNOWN, [True]]).astype(np.int8)))
        found += [codes[start:stop].copy() for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return found


def split_genome(stretches: list[Bases], shortest: int) -> Genome:
    """The last parts of every long stretch are held out; a stretch too short to be cut is trained on."""
    parts: dict[str, list[Bases]] = {"train": [], "val": [], "test": []}
    for stretch in stretches:
        held = round(HELD_OUT * len(stretch))
        if held < shortest:
            parts["train"].append(stretch)
            continue
        parts["train"].append(stretch[: len(stretch) - 2 * held])
        parts["val"].append(stretch[len(stretch) - 2 * held : len(stretch) - held])
        parts["test"].append(stretch[len(stretch) - held :])
    return Genome(**parts)


def reverse_complement(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The other strand, read in its own direction: A-T and C-G are exchanged, the order is turned round."""
    return 7 - tokens[..., ::-1]


def _files(folder: Path) -> list[Path]:
    endings = (".fa", ".fasta", ".fna")
    found = [f for f in sorted(folder.iterdir()) if f.name.removesuffix(".gz").endswith(endings) and f.is_file()]
    if not found:
        raise InputError(f"{folder}: holds no *.fa, *.fasta or *.fna (.gz); {EXPECTED}")
    return found
