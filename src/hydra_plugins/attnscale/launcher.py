"""The sweep: all cases composed and validated, then measured here or elsewhere, then the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


@dataclass(kw_only=True)
class SweepLauncherConfig:
    """Group hydra/launcher, choice sweep."""

    _target_: str = "hydra_plugins.attnscale.launcher.SweepLauncher"


ConfigStore.instance().store(
    group="hydra/launcher", name="sweep", node=SweepLauncherConfig, provider="attnscale"
)


class SweepLauncher(Launcher):
    """A thin shell: what a sweep does is in attnscale.job.

    ``elsewhere``: hydra/launcher is that of a cluster; the sweep is then prepared and closed here, and
    each of its cases is a job of that launcher.
    """

    def __init__(self, *, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Ends the process with the sweep's exit code. InvalidConfig before anything ran."""
        from attnscale import config, job
        from hydra_plugins.attnscale.points import compose

        points = compose(self.hydra_context.config_loader, self.config, job_overrides)
        code = job.sweep(
            points,
            _outputs(self.config),
            names_cases=any(config.is_axis(text.partition("=")[0]) for text in job_overrides[0]),
            elsewhere=self._send if self.elsewhere else None,
        )
        raise SystemExit(code)

    def _send(self, jobs: list[list[str]], folder: Path) -> None:
        """Every job through the other launcher, which is made here: its logs lie in ``folder`` too."""
        hydra = {"hydra.sweep.dir": str(folder), "hydra.sweep.subdir": "jobs/${hydra.job.num}"}
        with open_dict(self.config):
            for key, value in hydra.items():
                OmegaConf.update(self.config, key, value)
                self.config.hydra.overrides.hydra.append(f"{key}='{value}'")
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=self.task_function, config=self.config
        )
        for ended in launcher.launch(jobs, initial_job_idx=0):
            ended.return_value  # noqa: B018 - raises what the job raised


def _outputs(config: DictConfig) -> Path:
    """outputs/ beside the folder of the configuration."""
    sources = OmegaConf.select(config, "hydra.runtime.config_sources")
    conf = next(Path(source.path) for source in sources if source.provider == "main")
    return conf.parent / "outputs"
