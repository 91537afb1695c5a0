"""The tasks that `essm-train` knows: one entry each, read by the command line without importing torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Entry:
    """One task. data: what --data wants, as the card and the help spell it. run_on: what its loaders were run on so far."""

    name: str
    module: str
    summary: str
    data: str
    run_on: str = ""

    def load(self) -> ModuleType:
        """The task's module, whose names essm_train.tasks describes."""
        return importlib.import_module(self.module)


ENTRIES = (
    Entry("keywords", "essm_train.tasks.keywords", "ten spoken words, one second each", "--data-dir speech_commands"),
    Entry(
        "bytes",
        "essm_train.tasks.bytes",
        "the next byte of a text",
        "--data FILE",
        "text, JSON Lines, Parquet and a local data set of `datasets`; not on SlimPajama-627B or PG-19",
    ),
    Entry(
        "listops",
        "essm_train.tasks.listops",
        "nested list operators of Long Range Arena",
        "--data listops-1000",
        "generated sequences and 2,000 of the official generator; not on lra_release",
    ),
    Entry(
        "text",
        "essm_train.tasks.reviews",
        "film reviews by their bytes (Long Range Arena's Text)",
        "--data aclImdb",
        "movie_reviews.zip; not on aclImdb",
    ),
    Entry(
        "retrieval",
        "essm_train.tasks.retrieval",
        "which paper cites which, two towers (Retrieval)",
        "--data tsv_data",
        "614 ACL papers; not on AAN of lra_release",
    ),
    Entry(
        "images",
        "essm_train.tasks.images",
        "grey images pixel by pixel (sCIFAR)",
        "--data cifar-10-batches-bin",
        "Fashion-MNIST; not on CIFAR-10",
    ),
    Entry(
        "pathfinder",
        "essm_train.tasks.pathfinder",
        "are two dots joined (Pathfinder, Path-X)",
        "--data pathfinder32",
        "1,000 and 60 images of the official generator; not on lra_release",
    ),
    Entry(
        "decision",
        "essm_train.tasks.decision",
        "a policy for MuJoCo from recorded episodes",
        "--data hopper-medium.hdf5",
        "episodes that trained policies played here, and files that minari wrote; not on D4RL",
    ),
    Entry("dna", "essm_train.tasks.dna", "the next base of a genome", "--data genome.fa", "E. coli"),
    Entry("mqar", "essm_train.tasks.mqar", "multi-query associative recall", "--data generated"),
)
TASKS = {entry.name: entry for entry in ENTRIES}
