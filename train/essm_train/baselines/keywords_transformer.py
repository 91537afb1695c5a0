"""One elastic ES-SSM against a Transformer++ of each of its sizes, trained once per budget, on the keyword task.

    python -m essm_train.study keywords-dropout --data speech_commands -o ELASTIC
    python -m essm_train.baselines.keywords_transformer --data speech_commands -o FOLDER --elastic ELASTIC
    python -m essm_train.baselines.keywords_transformer -o FOLDER --elastic ELASTIC --table     prints what is there

A run lies in FOLDER/K<budget>-seed<n>-lr<rate>; complete ones are skipped, and a killed one goes on from its last epoch. Of
several learning rates the one with the best validation accuracy at the full budget's size and the study's first seed is
taken for all runs. At the end all models are timed in turns (turns.json), for which the runs' own times are no substitute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from essm_deploy.errors import EssmError, UsageError
from essm_deploy.files import disk_errors, write_json
from essm_train.baselines.comparison import SEARCH, TURNS, read_elastic, read_turns, table
from essm_train.baselines.runs import Comparison, Spec, run
from essm_train.baselines.turns import measure
from essm_train.device import choose_device
from essm_train.study import load_study

BUDGETS, SEEDS = (4, 8, 16, 32), (0, 1, 2)
RATES = (1e-3, 3e-3, 1e-2)  # the recipe's own, and a half decade to either side
ROUNDS = 15
INTERRUPTED = 130


def train_all(
    comparison: Comparison, budgets: Sequence[int], seeds: Sequence[int], lr: float, data: Path, device: torch.device
) -> None:
    """Train what is missing: every budget of a seed before the next seed."""
    for seed in seeds:
        for budget in budgets:
            _say(f"Transformer++ of the size of K={budget}, seed {seed}, learning rate {lr:g}")
            run(comparison, Spec(budget, seed, lr), data, device)


def choose_rate(comparison: Comparison, rates: Sequence[float], data: Path, device: torch.device) -> float:
    """The rate of the best validation accuracy, the first of equal ones; FOLDER/learning-rate.json says what each came to."""
    budget, seed = comparison.elastic_config.k_max, comparison.study.seeds[0]
    tried = {}
    for lr in rates:
        _say(f"learning rate {lr:g}: Transformer++ of the size of K={budget}, seed {seed}")
        tried[lr] = run(comparison, Spec(budget, seed, lr), data, device)
    chosen = max(tried, key=lambda lr: float(tried[lr]["val"]))
    found = {f"{lr:g}": {"validation": r["val"], "step_seconds": r["step_seconds"]} for lr, r in tried.items()}
    document = {"schema_version": "1.0", "chosen": chosen, "budget": budget, "seed": seed, "tried": found}
    write_json(comparison.folder / SEARCH, document)
    return chosen


def time_all(comparison: Comparison, budgets: Sequence[int], rounds: int, data: Path, device: torch.device) -> None:
    """Take turns, where that was not done yet for these budgets and this recipe; turns.json is to be deleted to repeat it."""
    path = comparison.folder / TURNS
    if rounds and read_turns(comparison, budgets) is None:
        _say(f"all models in turns, {rounds} rounds")
        write_json(path, measure(comparison, budgets, data, rounds, device))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m essm_train.baselines.keywords_transformer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="Speech Commands, as for essm-train keywords")
    parser.add_argument("-o", "--output", type=Path, required=True, help="where the runs lie")
    parser.add_argument("--elastic", type=Path, help="the folder of the elastic study, for the table")
    parser.add_argument("--study", default="keywords-dropout", help="the elastic study, a name or a file")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--lr", type=float, nargs="+", default=RATES, help="learning rates to choose from (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of timing in turns; 0 for none (%(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--table", action="store_true", help="train nothing; print what is there")
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> None:
    """UsageError for numbers that are none of their kind."""
    if any(seed < 0 for seed in options.seeds) or any(lr <= 0.0 for lr in options.lr) or options.rounds < 0:
        raise UsageError("--seeds and --rounds are 0 or more, and --lr is above 0")
    if options.data is None and not options.table:
        raise UsageError("--data is missing; only --table does without")


def compare(options: argparse.Namespace) -> str:
    """Train and time what is missing, unless only the table is wanted -> the table."""
    check(options)
    comparison = Comparison(load_study(options.study), options.output)
    budgets, seeds, rates = (tuple(dict.fromkeys(values)) for values in (options.budgets, options.seeds, options.lr))
    for budget in budgets:
        comparison.match(budget)
    if options.elastic is not None:
        read_elastic(comparison, budgets, seeds, options.elastic)  # a mistake in it is told before hours of training
    if not options.table:
        device = choose_device(options.device)
        with disk_errors(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
        lr = choose_rate(comparison, rates, options.data, device)
        train_all(comparison, budgets, seeds, lr, options.data, device)
        time_all(comparison, budgets, options.rounds, options.data, device)
    return table(comparison, budgets, seeds, options.elastic)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command in the module's docstring."""
    try:
        print(compare(parse(arguments)))
        return 0
    except EssmError as error:
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from the last saved epoch")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
