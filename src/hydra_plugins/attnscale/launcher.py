"""The sweep: all cases composed and validated, then run one after another, then the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass(kw_only=True)
class SweepLauncherConfig:
    """Group hydra/launcher, choice sweep."""

    _target_: str = "hydra_plugins.attnscale.launcher.SweepLauncher"


ConfigStore.instance().store(
    group="hydra/launcher", name="sweep", node=SweepLauncherConfig, provider="attnscale"
)


class SweepLauncher(Launcher):
    """A thin shell: what a sweep does is in attnscale.job."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Ends the process with the sweep's exit code. InvalidConfig before anything ran."""
        from attnscale import job

        loader = self.hydra_context.config_loader
        points = [loader.load_sweep_config(self.config, list(point)) for point in job_overrides]
        raise SystemExit(job.sweep(points, self.task_function))
