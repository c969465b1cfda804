"""The command line: ``python run.py -m backend=flash,math,cudnn seq=1024,4096``.

Hydra composes, the sweep launcher in src/hydra_plugins runs the cases, and every error that a user
can cause ends here as one line on stderr with exit code 2, before any case has run.
"""

import os
import re
import sys
import warnings
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from attnscale import config
from attnscale.case import InvalidConfig

config.register()
# conf/hydra/launcher completes the schemas of the plug-ins, which is what this warns of.
warnings.filterwarnings(
    "ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema"
)


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "conf"), config_name="config")
def main(composed: DictConfig) -> None:
    """One job of a cluster's launcher: one case of a sweep that another process runs and closes."""
    from attnscale import job

    job.run(composed)


LAUNCHERS = ("sweep", "submitit_slurm", "submitit_local", "ray")
REFUSED = {
    r"(--run|-r)": "leave it out, a single point is a sweep of one",
    r"(hydra\.mode)=(?!MULTIRUN$)(.*)": "leave it out, a single point is a sweep of one",
    r"(hydra/sweeper)=(?!grid$)(.*)": "leave it out, a sweep is a grid",
    rf"(hydra/launcher)=(?!(?:{'|'.join(LAUNCHERS)})$)(.*)": f"must be one of {', '.join(LAUNCHERS)}",
    r"(hydra\.(?:run|sweep)\..*?)=(.*)": "output_dir names the folder that gets a folder a sweep",
    r"(model|backend|timing|tracker)=(null|~)": "one of its choices is needed, see --help",
}
"""What would pass by the checks of the grid and the report, or end in Hydra's own traceback."""


def refuse_hydras_own_ways(argument: str) -> None:
    """InvalidConfig for an argument of REFUSED."""
    for pattern, allowed in REFUSED.items():
        if found := re.fullmatch(rf"\+*{pattern}", argument):
            key, value = (*found.groups(), "")[:2]
            raise InvalidConfig(key, value, allowed)


def cli() -> None:
    """``main`` with a user's errors in one line; HYDRA_FULL_ERROR=1 shows their traceback."""
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise what it would print in its own form
    try:
        for argument in sys.argv[1:]:
            refuse_hydras_own_ways(argument)
        main()
    except (InvalidConfig, HydraException, OmegaConfBaseException) as error:
        if wants_traceback:
            raise
        print(f"attnscale: {config.one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # before the first case, or while the report is built
        print("attnscale: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    cli()
