"""Record the shipped checkpoints on every target that can be measured here, into profiles/measured.

    python -m tests.benchmarks.record                     # what `make measured` runs
    python -m tests.benchmarks.record --target cpu --out /tmp/measured
    python -m tests.benchmarks.record --render            # the pages anew from the documents; measures nothing

For each checkpoint and target one `essm-deploy profile --all-K`, written as .json (the document with its samples, without a
path of this machine), .html, .md and .png. A target that cannot be reached is said so and left as it was. Measure on a quiet
machine: what is recorded is what readers compare with. At the end it says of every run whether other work disturbed it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.reporting.reading import load, runs_of
from essm_deploy.profiling.reporting.words import busy_words
from essm_deploy.profiling.reporting.write import write_reports

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT / "profiles" / "measured"
CHECKPOINTS = ("keywords", "bytes")
TARGETS = ("cpu", "web-wasm-node", "web-wasm")
SUFFIXES = ("json", "html", "md", "png")


def main() -> int:
    """0, or the exit code of the first run that failed for another reason than a target that is not here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable; default: all")
    parser.add_argument("--out", type=Path, default=MEASURED)
    parser.add_argument("--render", action="store_true", help="only write the pages of the documents that are there")
    asked = parser.parse_args()
    if asked.render:
        return render(asked.out)
    asked.out.mkdir(parents=True, exist_ok=True)
    for target in asked.target or TARGETS:
        for checkpoint in CHECKPOINTS:
            code = record(checkpoint, target, asked.out)
            if code == UnavailableError.exit_code:
                print(f"{target} is not here: {checkpoint}-{target} is left as it was", file=sys.stderr)
            elif code != 0:
                return code
    render(asked.out)  # from the rounded samples that are kept, so that page and document say the same
    for path in sorted(asked.out.glob("*.json")):
        busy = busy_words(runs_of(load(path), path.name)[0])
        print(f"{path.name}: {busy or 'undisturbed'}")
    return 0


def render(out: Path) -> int:
    """Write what belongs to every document in `out`."""
    for path in sorted(out.glob("*.json")):
        write_reports(load(path), [path.with_suffix(f".{suffix}") for suffix in SUFFIXES if suffix != "json"], source=path)
    return 0


def record(checkpoint: str, target: str, out: Path) -> int:
    """One run of the command line; its exit code."""
    command = [sys.executable, "-m", "essm_deploy.cli", "profile", str(ROOT / "examples" / "checkpoints" / checkpoint)]
    command += ["--all-K", "--target", target]
    for suffix in SUFFIXES:
        command += ["--report", str(out / f"{checkpoint}-{target}.{suffix}")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
