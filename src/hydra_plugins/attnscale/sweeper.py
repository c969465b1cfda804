"""The grid: every combination of the swept keys, whole, before anything is written or run."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from attnscale.case import InvalidConfig


@dataclass(kw_only=True)
class GridSweeperConfig:
    """Group hydra/sweeper, choice grid."""

    _target_: str = "hydra_plugins.attnscale.sweeper.GridSweeper"
    params: dict[str, str] = field(default_factory=dict)
    """Swept keys of a sweep file; a value on the command line wins."""


ConfigStore.instance().store(
    group="hydra/sweeper", name="grid", node=GridSweeperConfig, provider="attnscale"
)


class GridSweeper(Sweeper):
    """Hands the launcher the whole grid at once.

    Hydra's own sweeper differs in two ways that hurt here: it makes the sweep's folder before the
    grid is known to be valid, and ``++seq=512`` doubles a sweep file's seq instead of replacing it.
    """

    def __init__(self, params: dict[str, str]) -> None:
        self.params = params
        self.hydra_context: HydraContext | None = None
        self.launcher: Launcher | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra.core.plugins import Plugins

        from hydra_plugins.attnscale.launcher import SweepLauncher

        self.config = config
        self.hydra_context = hydra_context
        choice = config.hydra.runtime.choices["hydra/launcher"]
        try:
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=task_function, config=config
            )
        except RuntimeError as error:  # Hydra's word for a class that no installed plug-in has
            extra = choice.partition("_")[0]
            why = f"its plug-in is not installed: pip install -c constraints.txt -e '.[{extra}]'"
            raise InvalidConfig("hydra/launcher", choice, why) from error
        if not isinstance(launcher, SweepLauncher):
            launcher = SweepLauncher(elsewhere=True)
            launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.launcher = launcher

    def sweep(self, arguments: list[str]) -> Any:
        from attnscale import config

        assert self.hydra_context is not None
        assert self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        texts = [f"{key}={value}" for key, value in self.params.items()] + list(arguments)
        overrides = parser.parse_overrides(texts)
        for override in overrides:
            config.refuse(override)
        return self.launcher.launch(grid(overrides), initial_job_idx=0)


def grid(overrides: Sequence[Override]) -> list[list[str]]:
    """Every combination; the leftmost key is outermost, and a key's last mention wins.

    InvalidConfig when a key has no value at all.
    """
    from attnscale.config import LISTS

    axes: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if key in LISTS:
            given = (override.input_line or "").partition("=")[2]
            text = given.strip("\"'")
            values = [text if text == "null" else f"'{text}'"]  # 0,2 is one value here
        elif override.is_sweep_override():
            values = list(override.sweep_string_iterator())
        else:
            values = [override.get_value_element_as_str()]
        if not values:
            given = (override.input_line or "").partition("=")[2]
            raise InvalidConfig(
                key.lstrip("+"), given, "no value matches, and an empty grid is no sweep"
            )
        axes[key.lstrip("+")] = [f"{key}={value}" for value in values]
    return [list(point) for point in itertools.product(*axes.values())]
