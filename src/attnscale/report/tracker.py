"""W&B, fed from the records: one run a case, grouped by sweep, and one run for the report.

Offline is the default and opens no connection: the mode is in the environment before wandb is
imported, for wandb looks up its host otherwise. Online is time-boxed: when the service does not
answer, the rest of the sweep goes offline and the line that sends it later is printed. W&B is never
a source; no outage changes a result.
"""

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.analyse.utilisation import utilisation
from attnscale.record import Record, Status, record_path

if TYPE_CHECKING:
    import pandas

# What the service accepts; a longer text fails only at sync, when the sweep is long over.
_NAME_MAX = 128
_TAG_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where runs go."""

    online: bool
    project: str
    entity: str | None
    online_timeout_s: int
    """Longest wait for the service before falling back to offline, seconds."""


class Tracker:
    """Writes the W&B runs of one sweep into ``sweep/wandb``."""

    def __init__(self, settings: Settings, sweep: Path) -> None:
        self.settings = settings
        self.sweep = sweep
        self.mode = "online" if settings.online else "offline"
        _keep_wandb_inside(sweep, self.mode)

    def log_case(self, record: Record) -> None:
        """One finished run: the case as config, its metrics as summary, failed when the case did.

        Whatever goes wrong in W&B is one line on stderr: it must never cost a result.
        """
        try:
            self._log_case(record)
        except Exception as error:  # noqa: BLE001 - W&B raises of many kinds, none of them ours
            _complain(f"the W&B run of {record.slug}", error)

    def log_report(self, sweep_id: str, table: "pandas.DataFrame", figures: list[Path]) -> None:
        """One run that holds the whole table and every figure of the sweep."""
        if os.environ.get("WANDB_SWEEP_ID"):
            return  # under W&B's agent every process is one point and must be one run
        try:
            self._log_report(sweep_id, table, figures)
        except Exception as error:  # noqa: BLE001 - as above
            _complain("the W&B run of the report", error)

    def _log_case(self, record: Record) -> None:
        config = record.case_config() | {
            "key": record.key,
            "sweep_id": record.sweep_id,
            "environment": record.environment.model_dump(exclude={"nulls"}),
        }
        run = self._start("profile", record.slug, config, tags=[record.outcome.status.value])
        run.summary.update(_summary(record))
        if record.outcome.profile and record.outcome.profile.trace_file:
            self._log_trace(run, record, record.outcome.profile.trace_file)
        run.finish(exit_code=0 if record.outcome.status.expected else 1)

    def _log_trace(self, run: Any, record: Record, name: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"trace-{record.key}", type="profile")
        artifact.add_file(str(record_path(self.sweep, record.case).with_name(name)))
        run.log_artifact(artifact)

    def _log_report(self, sweep_id: str, table: "pandas.DataFrame", figures: list[Path]) -> None:
        import wandb

        run = self._start("report", f"report {sweep_id}", {"sweep_id": sweep_id}, tags=["report"])
        images = {f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}
        run.log({"results": wandb.Table(dataframe=_plain_columns(table))} | images)
        run.finish()

    def _start(self, job_type: str, name: str, config: dict[str, Any], tags: list[str]) -> Any:
        import wandb

        try:
            if self.mode == "online" and not wandb.login(prompt=False):
                raise wandb.errors.UsageError("no API key; wandb login stores one")
            return self._init(job_type, name, config, tags)
        except wandb.errors.Error as error:
            if self.mode == "offline":
                raise
            self.mode = "offline"
            os.environ["WANDB_MODE"] = "offline"
            why = " ".join(str(error).split())
            print(
                f"W&B is out of reach ({why}); the runs are kept offline. "
                f"Send them later with: wandb sync {self.sweep}/wandb/offline-run-*",
                file=sys.stderr,
            )
            return self._init(job_type, name, config, tags)

    def _init(self, job_type: str, name: str, config: dict[str, Any], tags: list[str]) -> Any:
        import wandb

        return wandb.init(
            project=self.settings.project,
            entity=self.settings.entity,
            group=self.sweep.name[:_NAME_MAX],
            job_type=job_type,
            name=name[:_NAME_MAX],
            config=config,
            tags=[tag[:_TAG_MAX] for tag in tags],
            dir=str(self.sweep),
            mode="online" if self.mode == "online" else "offline",
            reinit="create_new",
            settings=wandb.Settings(
                init_timeout=self.settings.online_timeout_s,
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_save_requirements=False,  # 0.3 s a run; the record names the packages that count
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )


@functools.cache
def open_tracker(settings: Settings, sweep: Path) -> Tracker:
    """The tracker of a sweep, one in a process, so that an outage is met once and not every case."""
    return Tracker(settings, sweep)


def _complain(what: str, error: Exception) -> None:
    why = " ".join(str(error).split()) or type(error).__name__
    print(f"{what} is lost ({why}); the record is not", file=sys.stderr)


def _keep_wandb_inside(sweep: Path, mode: str) -> None:
    os.environ["WANDB_MODE"] = mode
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    for name in ("DATA", "CACHE", "CONFIG"):
        os.environ[f"WANDB_{name}_DIR"] = str(sweep / "wandb")
    (sweep / "wandb").mkdir(parents=True, exist_ok=True)


def _summary(record: Record) -> dict[str, Any]:
    outcome = record.outcome
    known = {
        name: value
        for name, value in (outcome.metrics.model_dump() | record.costs.model_dump()).items()
        if value is not None
    }
    known |= {name: value for name, value in utilisation(record).items() if value is not None}
    texts = {"status": outcome.status.value, "backend_chosen": outcome.backend_chosen}
    texts["backend_ran"] = outcome.backend_ran
    if outcome.status is not Status.OK:
        texts["reason"] = outcome.reason
    return known | {name: text for name, text in texts.items() if text is not None}


def _plain_columns(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Object columns: W&B's Table refuses pandas' nullable numbers and takes None."""
    return table.astype(object).where(table.notna(), None)
