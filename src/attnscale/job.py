"""One Hydra job, start to end: config to case, measure, record, write, track.

And the sweep of such jobs as Hydra's launcher sees it: every point validated before the first runs.
"""

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from attnscale import record as records
from attnscale.case import Case
from attnscale.config import Config, TrackerMode, TrackerName, to_case, to_config
from attnscale.measure.cost import costs
from attnscale.measure.device import resolve, snapshot
from attnscale.measure.forward import measure
from attnscale.record import Record
from attnscale.report.tracker import Settings, Tracker, open_tracker
from attnscale.sweep import Job, new_folder, run_sweep


def run(composed: DictConfig) -> Record:
    """Measure the case that ``composed`` describes and leave its record in the sweep's folder."""
    folder = Path(HydraConfig.get().sweep.dir)
    config = to_config(composed)
    case = _case(config)
    started_at = _now()
    environment = snapshot(case.device)  # before the case, which may leave a device that can't be asked
    outcome = measure(case)
    record = Record(
        sweep_id=folder.name,
        key=case.key,
        slug=case.slug,
        case=case,
        outcome=outcome,
        costs=costs(case, ran=outcome.backend_chosen),
        environment=environment,
        started_at=started_at,
        ended_at=_now(),
    )
    records.write(record, folder)
    if tracker := _tracker(config, folder):
        tracker.log_case(record)
    return record


def sweep(points: Sequence[DictConfig], task: Callable[[DictConfig], object]) -> int:
    """Validate every composed point, run each through ``task``, close; the exit code of the process.

    InvalidConfig before anything has run or been written when one point is invalid.
    """
    configs = [to_config(_without_hydra(point)) for point in points]
    cases = [_case(config) for config in configs]
    folder = new_folder(_output_dir(configs[0], points[0]))
    jobs = [
        Job(case=case, run=functools.partial(_run_in, folder, point, task))
        for case, point in zip(cases, points, strict=True)
    ]
    return run_sweep(jobs, folder, _tracker(configs[0], folder))


def _run_in(folder: Path, point: DictConfig, task: Callable[[DictConfig], object]) -> Record:
    """As Hydra's launchers do it: the job's own Hydra config is global while the job runs."""
    with open_dict(point):
        point.hydra.sweep.dir = str(folder)
    HydraConfig.instance().set_config(point)
    record = task(_without_hydra(point))
    assert isinstance(record, Record)
    return record


def _without_hydra(point: DictConfig) -> DictConfig:
    plain = point.copy()
    with open_dict(plain):
        del plain["hydra"]
    return plain


def _case(config: Config) -> Case:
    return to_case(config, device=resolve(config.device.value))


def _output_dir(config: Config, point: DictConfig) -> Path:
    if config.output_dir is not None:
        return Path(config.output_dir).absolute()
    sources = OmegaConf.select(point, "hydra.runtime.config_sources")
    conf = next(Path(source.path) for source in sources if source.provider == "main")
    return conf.parent / "outputs"


def _tracker(config: Config, folder: Path) -> Tracker | None:
    tracker = config.tracker
    if tracker.name is TrackerName.none:
        return None
    settings = Settings(
        online=tracker.mode is TrackerMode.online,
        project=tracker.project,
        entity=tracker.entity,
        online_timeout_s=tracker.online_timeout_s,
    )
    return open_tracker(settings, folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
