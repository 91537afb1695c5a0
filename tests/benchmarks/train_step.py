"""A training step at every budget: forward, backward and update, and what budget dropout saves against always-full.

    python -m tests.benchmarks.train_step -o out/bench [--models keywords bytes] [--seconds 20] [--threads 1]

The budgets take turns, A B C A B C, so that a machine that slows down for a while slows all of them; a step time is the median
of the rounds. On a CPU the process's own time is given as well, which a busy machine lengthens less. The mean step of budget
dropout weighs the budgets by the sampler's chances, full steps included. The paper measured 48.4 % less wall-clock time per
update than always-full (arXiv 2601.22488), on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from essm_deploy.files import write_json, write_text
from essm_deploy.spectral.bank import hankel_bank
from essm_train.budget import BUDGETS, BudgetSampler
from essm_train.convolution import choose_mixer
from essm_train.device import setup_device
from essm_train.model import EsSsm, ModelConfig
from essm_train.optim import make_optimizer
from essm_train.step import Method, Part, optimise
from essm_train.tasks import Batch
from essm_train.throughput import step_flops
from tests.benchmarks import machine

PAPER_SAVING = 0.484
MODELS = {
    "keywords": (ModelConfig(64, 4, 100, input_size=40, num_labels=10), 32),
    "keywords-paper": (ModelConfig(256, 4, 100, input_size=40, num_labels=10), 32),
    "bytes": (ModelConfig(128, 3, 1024, vocab_size=258), 2),
    "bytes-wide": (ModelConfig(256, 4, 2048, vocab_size=258), 1),
    "decision": (ModelConfig(72, 3, 60, input_size=72, num_labels=6, pooled=False), 64),
}


class Random:
    """A task of random batches, for nothing but its cost."""

    def __init__(self, config: ModelConfig, rows: int, device: torch.device) -> None:
        self.model_config = config
        generator = torch.Generator().manual_seed(0)
        shape = (rows, config.seq_len)
        if config.vocab_size is not None:
            inputs = torch.randint(2, config.vocab_size, shape, generator=generator)
            targets = torch.randint(2, config.vocab_size, shape, generator=generator)
        else:
            inputs = torch.randn(*shape, config.input_size, generator=generator)
            targets = torch.randint(config.num_labels, (rows,) if config.pooled else shape, generator=generator)
        self.batch = Batch(inputs.to(device), None, targets.to(device))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())


def measure(name: str, seconds: float, device: torch.device, convolution: str) -> dict[str, object]:
    """Median seconds of a step at each budget, and the mean step of the sampler."""
    config, rows = MODELS[name]
    task = Random(config, rows, device)
    bank = hankel_bank(config.seq_len, config.k_max, method="exact")
    torch.manual_seed(0)
    model = EsSsm(config, bank.filters, bank.sigma)
    mixer = choose_mixer(convolution, bank, BUDGETS, device)
    for layer in model.layers:
        layer.spectral.mixer = mixer
    model = model.to(device).train()
    optimizer = make_optimizer(model, 1e-6, 0.0)
    precision = torch.bfloat16 if device.type == "cuda" else None
    times: dict[int, list[float]] = {k: [] for k in BUDGETS}
    own: dict[int, list[float]] = {k: [] for k in BUDGETS}
    begun, rounds = time.monotonic(), -1
    while rounds < 3 or time.monotonic() - begun < seconds:
        for k in BUDGETS:
            start, used = time.perf_counter(), time.process_time()
            optimise(model, task, [Part(task.batch, k)], optimizer, Method(1.0, 0.0, precision))  # type: ignore[arg-type]
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if rounds >= 0:  # the first round allocates
                times[k].append(time.perf_counter() - start)
                own[k].append(time.process_time() - used)
        rounds += 1
    run = {"model": name, "rows": rows, "rounds": rounds, "convolution": convolution}
    return {**run, **summary(config, rows, times), "own_time": summary(config, rows, own)}


def summary(config: ModelConfig, rows: int, times: dict[int, list[float]]) -> dict[str, object]:
    """Medians, and the mean step of budget dropout after the warm-up against always-full."""
    median = {k: statistics.median(values) for k, values in times.items()}
    sampler = BudgetSampler()
    drawn = sum(chance * median[k] for k, chance in sampler.probabilities().items())
    mean = median[BUDGETS[-1]] / sampler.n_full + drawn * (1 - 1 / sampler.n_full)
    tokens = rows * config.seq_len
    flops = {str(k): round(step_flops(config, k, tokens) / median[k] / 1e9, 2) for k in BUDGETS}
    return {
        "step_ms": {str(k): round(1000 * value, 3) for k, value in median.items()},
        "samples_ms": {str(k): [round(1000 * value, 3) for value in values] for k, values in times.items()},
        "gflops": flops,
        "mean_step_ms": round(1000 * mean, 3),
        "saving": round(1 - mean / median[BUDGETS[-1]], 4),
    }


def table(results: list[dict[str, object]]) -> str:
    """Markdown: a model a row."""
    head = "| model | " + " | ".join(f"K={k}" for k in BUDGETS) + " | mean of dropout | saved per update |"
    lines = [head, "|---|" + "---:|" * (len(BUDGETS) + 2)]
    for r in results:
        lines += [_row(f"{r['model']} ({r['convolution']})", r), _row(f"{r['model']}, own time", r["own_time"])]
    return "\n".join(lines) + f"\n\nMilliseconds. The paper's saving per update: {PAPER_SAVING:.1%}.\n"


def _row(name: str, found: Any) -> str:
    cells = " | ".join(f"{found['step_ms'][str(k)]:.1f}" for k in BUDGETS)
    return f"| {name} | {cells} | {found['mean_step_ms']:.1f} | {found['saving']:.1%} |"


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["keywords", "bytes"])
    parser.add_argument("--convolutions", nargs="+", default=["auto"], help="auto, toeplitz, chunked, fft")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rounds for each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    setup_device(device, arguments.threads)
    results = [measure(name, arguments.seconds, device, c) for name in arguments.models for c in arguments.convolutions]
    arguments.output.mkdir(parents=True, exist_ok=True)
    document = {"threads": arguments.threads, "machine": machine.describe(), "versions": machine.versions(), "results": results}
    write_json(arguments.output / "train_step.json", json.loads(json.dumps(document, default=str)))
    write_text(arguments.output / "train_step.md", table(results))
    print(table(results))


if __name__ == "__main__":
    main()
