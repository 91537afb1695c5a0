"""The command line: parse, call, print. Each command is imported when it is asked for, so that a device needs no compiler."""

from __future__ import annotations

import signal
import sys

import click

from essm_deploy import __version__
from essm_deploy.cli.guard import INTERRUPTED, LazyGroup, guarded

COMMANDS = {
    "build": ("essm_deploy.cli.build:build", "Choose the largest budget that fits a device, and bundle its engine."),
    "profile": ("essm_deploy.cli.profile:profile", "Measure the budgets of a checkpoint on a device."),
    "report": ("essm_deploy.cli.report:report", "Write a document of profile as a page, as Markdown or as a picture."),
    "compare": ("essm_deploy.cli.compare:compare", "Compare two documents of profile, budget by budget."),
    "verify": ("essm_deploy.cli.verify:verify", "Check a bundle's files and replay its test vectors."),
    "run": ("essm_deploy.cli.run:run", "Label a clip with a bundle."),
    "inspect": ("essm_deploy.cli.inspect:inspect", "Show what is in a checkpoint or a bundle."),
    "targets": ("essm_deploy.cli.targets:targets", "List the devices that can be compiled for."),
    "doctor": (
        "essm_deploy.cli.doctor:doctor",
        "Report this machine: versions, providers, cores, and what is missing.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="essm-deploy")
def cli() -> None:
    """Compile an elastic sequence model to the largest budget that a device can afford."""


def main() -> None:
    """Entry point of `essm-deploy`."""
    code = guarded(cli, "essm-deploy")
    if code == INTERRUPTED:  # one more Ctrl-C must not turn the exit code into a signal while the interpreter ends
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
