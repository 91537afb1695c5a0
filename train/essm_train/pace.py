"""How many steps fit into a time, from a few steps on a copy of the model."""

from __future__ import annotations

import copy
import time

from essm_deploy.errors import UsageError
from essm_train.model import EsSsm
from essm_train.optim import make_optimizer
from essm_train.parallel import World
from essm_train.settings import CommonSettings
from essm_train.step import Method, Part, optimise, plan_step, precision_of
from essm_train.tasks import Task
from essm_train.trainer import make_sampler

TRIAL = 8  # steps at each end of the run, where sequences may differ in length; as many as a cycle of the sampler
SHARE = 0.9  # of the time, for steps; the rest is for the looks at the validation split and for the final table


def steps_within(minutes: float, model: EsSsm, task: Task, settings: CommonSettings) -> int:
    """Whole epochs' worth of steps, at least one, that take about so many minutes at the pace of this moment."""
    model, steps = copy.deepcopy(model).train(), settings.train.epochs * task.steps_per_epoch
    optimizer = make_optimizer(model, 1e-6, 0.0)
    method = Method(1.0, settings.budgets.distill, precision_of(settings.train.precision, next(model.parameters()).device))
    sampler = make_sampler(settings, task.steps_per_epoch)
    trial = [*range(min(TRIAL, steps)), *range(max(0, steps - TRIAL), steps)]
    optimise(model, task, [Part(task.batch(0), settings.model.k_max)], optimizer, method)  # the first one allocates
    start = time.monotonic()
    for step in trial:
        optimise(model, task, plan_step(task.batch(step), step, settings, sampler, World()), optimizer, method)
    pace = (time.monotonic() - start) / len(trial)
    if 60 * minutes * SHARE < pace * task.steps_per_epoch:
        raise UsageError(f"--minutes {minutes:g}: {task.steps_per_epoch} steps alone take {pace * task.steps_per_epoch:.0f} s")
    return int(60 * minutes * SHARE / pace) // task.steps_per_epoch * task.steps_per_epoch
