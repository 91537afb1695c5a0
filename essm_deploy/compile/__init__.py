"""The pipeline: checkpoint -> candidates -> engines -> measurements -> the largest budget -> bundle.

    request.py    what is asked
    job.py        a request with everything looked up, and the resolved build config
    parity.py     every engine against the float64 reference, here and where it will run
    sweeps.py     the sweeps of a run: staging directory, journal and device, shared by all limits
    bundling.py   from an answer to its bundle
    several.py    the answer of several runs
    pipeline.py   build and profile: one named step a line, for one request or several
    shown.py      what is said without measuring: plan and describe_checkpoint

In the order of imports; each imports only what is above it.
"""

from essm_deploy.compile.pipeline import build, build_all, profile, profile_all
from essm_deploy.compile.request import Progress, Request
from essm_deploy.compile.shown import describe_checkpoint, plan, plan_all

__all__ = ["Progress", "Request", "build", "build_all", "describe_checkpoint", "plan", "plan_all", "profile", "profile_all"]
