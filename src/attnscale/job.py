"""From composed Hydra points to a sweep: here, on the GPUs of this machine, or elsewhere.

Elsewhere is another Hydra launcher, of a cluster. Its jobs come back through ``run``, one case each,
on the machine that measures; the folder is made and the report built here in either case.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from attnscale.case import Case, InvalidConfig
from attnscale.config import (
    Config,
    Device,
    Retry,
    Trace,
    TrackerMode,
    TrackerName,
    to_case,
    to_config,
    to_guess,
)
from attnscale.manifest import Manifest
from attnscale.measure import worker
from attnscale.report.tracker import Settings as TrackerSettings
from attnscale.report.tracker import Tracker, open_tracker
from attnscale.sweep.devices import CPU, chosen_gpus, resolve
from attnscale.sweep.devices import Device as Lane
from attnscale.sweep.folder import (
    LATEST,
    Resume,
    SweepFolder,
    held_alone,
    joined,
    latest,
    resumed,
    started,
)
from attnscale.sweep.run import EXIT_FAILED_CASES, Settings, close, distinct, run_cases
from attnscale.sweep.worker import Measuring

MEASURING = Measuring(worker.start, worker.measure)

Elsewhere = Callable[[list[list[str]], Path], object]
"""Runs each list of overrides as a job, its logs in the folder; returns when all have ended."""


def sweep(
    points: Sequence[DictConfig],
    outputs: Path,
    *,
    names_cases: bool = True,
    elsewhere: Elsewhere | None = None,
) -> int:
    """Validate every composed point, measure what is to do, close; the exit code of the process.

    ``outputs`` gets the sweep's folder unless the config names another. With ``names_cases`` false
    the command named no axis, and a resumed sweep goes on with its own grid. InvalidConfig before
    anything has run or been written when one point is invalid.
    """
    configs = [to_config(point) for point in points]
    config = configs[0]
    local = elsewhere is None
    cases, repeated = distinct(_case(each, local=local) for each in configs)
    if local:
        _devices(cases, config)  # refused, if at all, before there is a folder
    folder = _folder(cases if names_cases else None, config, outputs)
    folder = dataclasses.replace(
        folder, notices=[*repeated, *folder.notices], manifest=_guessed(folder.manifest, config)
    )
    with held_alone(folder.path):
        tracker = _tracker(config, folder.path)
        try:
            if elsewhere is None:
                _measure_here(folder, config, tracker)
            else:
                _measure_elsewhere(folder, config, elsewhere)
        except KeyboardInterrupt:
            print("interrupted: the report holds what was measured until now", file=sys.stderr)
            return close(folder.path, tracker, interrupted=True)
        except OSError as error:
            kept = f"what was measured before is kept, resume={folder.path} goes on"
            where = f"{error.filename}: " if error.filename else ""
            print(f"attnscale: {where}{error.strerror or error}; {kept}", file=sys.stderr)
            close(folder.path, tracker)
            return EXIT_FAILED_CASES
        return close(folder.path, tracker)


def run(composed: DictConfig) -> None:
    """Measure the one case that ``composed`` describes for a sweep that another process runs."""
    config = to_config(composed)
    if config.resume is None:
        raise InvalidConfig("resume", None, "a job of another launcher needs its sweep's folder")
    path = Path(config.resume)
    folder = joined(_case(config, local=True), path, force=config.resume_force)
    _measure_here(folder, config, _tracker(config, path))


def _measure_here(folder: SweepFolder, config: Config, tracker: Tracker | None) -> None:
    run_cases(folder, _devices(folder.todo, config), _settings(config), MEASURING, tracker)


def _measure_elsewhere(folder: SweepFolder, config: Config, elsewhere: Elsewhere) -> None:
    for notice in folder.notices:
        print(notice, file=sys.stderr)
    folder.write_manifest()
    jobs = [_overrides(case, folder.path, config) for case in folder.todo]
    try:
        if jobs:
            elsewhere(jobs, folder.path)
    except Exception as error:  # noqa: BLE001 - each launcher has its own; the records say what is missing
        print(f"attnscale: a job did not end well: {_one_line(error)}", file=sys.stderr)


def _guessed(manifest: Manifest | None, config: Config) -> Manifest | None:
    """With what the user expects of this command, before anything is measured."""
    guess = to_guess(config)
    if manifest is None or guess is None:
        return manifest
    return manifest.model_copy(update={"guesses": [*manifest.guesses, guess]})


def _folder(cases: Sequence[Case] | None, config: Config, outputs: Path) -> SweepFolder:
    parent = outputs if config.output_dir is None else Path(config.output_dir).absolute()
    command = shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
    if config.resume is None:
        for key, default in (("retry", Retry.none), ("resume_force", False)):
            if getattr(config, key) != default:
                raise InvalidConfig(
                    key, _text(getattr(config, key)), "resume=FOLDER or latest is needed too"
                )
        assert cases is not None
        return started(cases, parent, command)
    path = latest(parent) if config.resume == LATEST else Path(config.resume).absolute()
    how = Resume(
        retry_failed=config.retry is Retry.failed, force=config.resume_force, infer=config.skip_hopeless
    )
    return resumed(cases, path, command, how)


def _case(config: Config, *, local: bool) -> Case:
    requested = config.device.value
    if local:
        return to_case(config, device=resolve(requested))
    if config.device is Device.auto:
        why = "cuda or cpu is needed under this launcher, whose machines are others than this"
        raise InvalidConfig("device", requested, why)
    return to_case(config, device=requested)


def _devices(cases: Sequence[Case], config: Config) -> list[Lane]:
    kinds = {case.device for case in cases}
    gpus = chosen_gpus(config.gpus) if "cuda" in kinds else []
    return gpus + ([CPU] if "cpu" in kinds else [])


def _settings(config: Config) -> Settings:
    return Settings(
        isolation=config.isolation.value,
        case_timeout_s=config.case_timeout_s,
        skip_hopeless=config.skip_hopeless,
        strict_gpu=config.strict_gpu,
        repeats=config.repeats,
        keep_trace=config.trace is Trace.keep,
    )


def _overrides(case: Case, folder: Path, config: Config) -> list[str]:
    """What makes ``case`` again on another machine, and how it is to be run there."""
    fields = dataclasses.asdict(case)
    timing = fields.pop("timing")
    fields |= {f"timing.{name}": value for name, value in timing.items()}
    fields |= {name: getattr(config, name) for name in _OF_A_JOB}
    fields |= {"resume": folder, "tracker": config.tracker.name}
    if config.tracker.name is not TrackerName.none:
        tracker = dataclasses.asdict(config.tracker)
        fields |= {f"tracker.{name}": value for name, value in tracker.items() if name != "name"}
    return [f"{name}={_quoted(value)}" for name, value in fields.items()]


_OF_A_JOB = ("gpus", "isolation", "case_timeout_s", "strict_gpu", "trace", "resume_force")


def _quoted(value: object) -> str:
    text = _text(value)
    plain = not isinstance(value, str | Path) or text.replace("_", "").isalnum()
    return text if plain else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _text(value: object) -> str:
    """As an override has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "value", value))


def _tracker(config: Config, folder: Path) -> Tracker | None:
    tracker = config.tracker
    if tracker.name is TrackerName.none:
        return None
    settings = TrackerSettings(
        online=tracker.mode is TrackerMode.online,
        project=tracker.project,
        entity=tracker.entity,
        online_timeout_s=tracker.online_timeout_s,
    )
    return open_tracker(settings, folder)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
