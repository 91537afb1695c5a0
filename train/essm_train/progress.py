"""What a run tells: lines on stderr for a person, JSON Lines for a program, TensorBoard where it was asked for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from essm_deploy.errors import UnavailableError
from essm_deploy.files import disk_errors, write_text


class Progress:
    """The log of one run; silent on every rank but the first. tensorboard: where its events go, or None."""

    def __init__(self, log: Path, first: int, steps: int, steps_per_epoch: int, tensorboard: Path | None = None) -> None:
        self.log, self.first, self.steps, self.per_epoch = log, first, steps, steps_per_epoch
        self.start = self.mark = time.monotonic()
        self.losses: list[float] = []
        self.tokens, self.flops = 0, 0.0
        self.events = _events(tensorboard)
        log.parent.mkdir(parents=True, exist_ok=True)
        if first:
            drop_later_steps(log, first)
            self.say(f"resuming after step {first} of {steps}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def record(self, **entry: Any) -> None:
        with disk_errors(self.log), self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def step(
        self, step: int, loss: float, norm: float, budgets: Sequence[int], tokens: int = 0, flops: float = 0.0, lr: float = 0.0
    ) -> None:
        """A step is done: its loss, gradient norm, the budget of each of its parts, and the work that it was."""
        self.losses.append(loss)
        self.tokens, self.flops = self.tokens + tokens, self.flops + flops
        budget = budgets[0] if len(set(budgets)) == 1 else list(budgets)
        self.record(step=step, loss=round(loss, 5), gradient_norm=round(norm, 4), budget=budget, lr=lr)
        self._event(step, {"loss": loss, "gradient_norm": norm, "budget": sum(budgets) / len(budgets), "lr": lr})

    def epoch(self, step: int, peak: float | None) -> None:
        """`step` steps are done, whole epochs of them. peak: operations a second of all devices together, where known."""
        now = time.monotonic()
        spent, lap = now - self.start, now - self.mark
        left = spent / (step - self.first) * (self.steps - step)
        pace = {"tokens_per_second": round(self.tokens / lap, 1), "flops_per_second": round(self.flops / lap)}
        if peak is not None:
            pace["mfu"] = round(self.flops / lap / peak, 4)
        epoch, mean = step // self.per_epoch, sum(self.losses) / len(self.losses)
        self.record(epoch=epoch, mean_loss=round(mean, 5), seconds=round(lap, 2), **pace)
        self._event(step, pace)
        shown = f"{self.tokens / lap:,.0f} tokens/s" + (f", MFU {pace['mfu']:.0%}" if peak is not None else "")
        epochs = f"epoch {epoch}/{self.steps // self.per_epoch}"
        self.say(f"{epochs}  loss {mean:.4f}  {spent:.0f} s, about {left:.0f} s left  {shown}")
        self.losses, self.mark, self.tokens, self.flops = [], now, 0, 0.0

    def evaluated(self, epoch: int, metric: str, values: dict[int, float]) -> None:
        """A look at the validation split at several budgets."""
        self.record(epoch=epoch, metric=metric, split="val", values={str(k): round(v, 5) for k, v in values.items()})
        self._event(epoch * self.per_epoch, {f"val_{metric}/K={k}": value for k, value in values.items()})
        shown = "  ".join(f"K={k} {value:.4f}" for k, value in values.items())
        self.say(f"epoch {epoch}  validation {metric}  {shown}")

    def close(self) -> None:
        if self.events is not None:
            self.events.close()

    def _event(self, step: int, values: dict[str, float]) -> None:
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(name, value, step)


class Silent(Progress):
    """The progress of a rank that says nothing."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step(self, *_: Any, **__: Any) -> None: ...

    def epoch(self, *_: Any) -> None: ...

    def evaluated(self, *_: Any) -> None: ...

    def close(self) -> None: ...


def drop_later_steps(log: Path, first: int) -> None:
    """Forget what a killed run logged after its last state, for the resumed one logs it again."""
    if not log.exists():
        return
    lines = log.read_text("utf-8").splitlines(keepends=True)
    for place, line in enumerate(lines):
        try:
            late = json.loads(line).get("step", -1) >= first
        except ValueError:  # cut off by the kill
            late = True
        if late:
            write_text(log, "".join(lines[:place]))
            return


def _events(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UnavailableError("--tensorboard needs tensorboard: pip install 'essm-deploy[tensorboard]'") from error
    return SummaryWriter(str(folder))
