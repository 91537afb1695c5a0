"""`python -m essm_deploy.cli` is `essm-deploy`."""

from essm_deploy.cli import main

main()
