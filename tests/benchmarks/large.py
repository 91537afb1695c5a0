"""The paper's configuration (d 1152, 24 layers, 1.29 billion parameters at K 32) through slice, ONNX and TensorRT, on a CPU.

    python -m tests.benchmarks.large [--budgets 2,8] [--target rtx3090] [--directory DIR]

Weights are random: what is asked is whether the compiler gets through, how long it takes, and how much memory it needs beside
the slice that it compiles. Memory is what the process allocates (RssAnon): the checkpoint's mapped pages, which the kernel may
drop, are in `vmhwm_bytes`. Each budget is compiled in a fresh process. Prints one JSON document; 5.5 GB of disk, and minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.backends import find_backend
from essm_deploy.backends.emit import prepare
from essm_deploy.checkpoint import write_checkpoint
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.tensors import tensor_table
from essm_deploy.profiling.estimate import GPU, EstimatedPlanner, Rates
from essm_deploy.runtime.memory import read_memory
from essm_deploy.spectral.bank import hankel_bank
from essm_deploy.targets.description import find_target
from tests.benchmarks.workloads import SEED
from tests.checkpoints import BYTES

CONFIG: dict[str, Any] = {
    **BYTES,
    "hidden_size": 1152,
    "num_hidden_layers": 24,
    "intermediate_size": 4608,
    "gate_hidden_size": 576,
    "vocab_size": 258,
    "seq_len": 2048,
    "k_max": 32,
    "budgets": [2, 4, 6, 8, 16, 32],
}
PEAK_BOUND = 2.5
"""Largest peak of what the compiler allocates, as a multiple of the slice's weights."""


def write_large(directory: Path) -> Path:
    """The checkpoint. Every tensor is a window of one random block, so that writing needs the memory of one tensor."""
    config = EsSsmConfig.model_validate(CONFIG)
    bank = hankel_bank(config.seq_len, config.k_max)
    specs = tensor_table(config)
    sizes = {spec.name: int(np.prod(spec.shape)) for spec in specs}
    block = np.random.default_rng(SEED).standard_normal(max(sizes.values()) + 64 * len(specs), np.float32) * np.float32(0.02)
    tensors: dict[str, np.ndarray] = {}
    for index, spec in enumerate(specs):
        tensors[spec.name] = block[64 * index : 64 * index + sizes[spec.name]].reshape(spec.shape)
        if "norm" in spec.name and spec.name.endswith("weight"):
            tensors[spec.name] = np.ones(spec.shape, np.float32)
    tensors |= {"bank.filters": np.array(bank.filters), "bank.sigma": np.array(bank.sigma)}
    written = {**CONFIG, "bank": {"kind": "exact", "sha256": bank.sha256}}
    write_checkpoint(directory / "large", written, tensors, None, f"# Random weights for tests/benchmarks, seed {SEED}\n")
    return directory / "large"


class Peak:
    """The largest anonymous memory of this process while the block runs, sampled a hundred times a second."""

    def __enter__(self) -> Peak:
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.bytes = max(self.bytes, read_memory().anonymous_bytes or 0)


def compile_one(checkpoint: Path, budget: int, target_name: str, root: Path) -> dict[str, Any]:
    """One budget in this process: seconds of every step, and the peak against the slice."""
    seconds: dict[str, float] = {}
    target = find_target(target_name)
    backend = find_backend(target)
    with Peak() as peak:
        opened = timed(seconds, "open and check", lambda: open_checkpoint(checkpoint))
        planner = EstimatedPlanner(Rates.of(target), GPU)
        emitter = timed(seconds, "slice and write weights", lambda: prepare(root, opened, [budget], 1, backend, planner))
        engine = timed(seconds, "lower, check and build the engine", lambda: emitter.sequence(budget))
    parameters = family_of(opened).parameter_count(opened, budget)
    return {
        "budget": budget,
        "target": target_name,
        "parameters": parameters,
        "slice_bytes": 4 * parameters,
        "peak_anonymous_bytes": peak.bytes,
        "peak_ratio": round(peak.bytes / (4 * parameters), 2),
        "bound": PEAK_BOUND,
        "vmhwm_bytes": read_memory().peak_bytes,
        "engine_bytes": (root / engine.files[0]).stat().st_size,
        "lowering": emitter.lowerings[engine.id],
        "seconds": {step: round(value, 1) for step, value in seconds.items()},
        "proof": engine.proof,
    }


def timed(seconds: dict[str, float], step: str, run: Any) -> Any:
    """Run a step and note how long it took."""
    start = time.monotonic()
    result = run()
    seconds[step] = time.monotonic() - start
    return result


def main() -> None:
    """Write the checkpoint, then one process a budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="2,8")
    parser.add_argument("--target", default="rtx3090")
    parser.add_argument("--directory", type=Path, default=None, help="where the checkpoint is, or is written and stays")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        with tempfile.TemporaryDirectory(dir=options.directory) as root:
            print(json.dumps(compile_one(options.directory / "large", options.one, options.target, Path(root))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / "large").is_dir():
            write_large(directory)
        rows = [_fresh(directory, int(budget), options.target) for budget in options.budgets.split(",")]
    print(json.dumps({"schema_version": "1.0", "results": rows}, indent=2))


def _fresh(directory: Path, budget: int, target: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.large", "--one", str(budget)]
    command += ["--target", target, "--directory", str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(f"K={budget}: peak {row['peak_ratio']} x the slice, {row['seconds']}", file=sys.stderr)
    return row


if __name__ == "__main__":
    main()
