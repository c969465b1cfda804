"""The folder of a sweep: made new or gone on with, its manifest, and what is still to be measured.

A new folder is named by the second. A resumed one keeps every record that counts: what is missing,
damaged or, with ``retry``, failed is to do again. Cases measured on another GPU, another torch or in
another schema are not mixed in unless forced.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from attnscale import record as records
from attnscale.case import Case, InvalidConfig
from attnscale.manifest import Manifest, PlannedCase, manifest_path, read_manifest, write_manifest
from attnscale.record import SCHEMA_VERSION, Environment, Record, Skipped

LATEST = "latest"
_COMPARED_ACROSS_DEVICES = ("torch", "python")
_COMPARED = ("device_name", "driver", "cuda", "cudnn", *_COMPARED_ACROSS_DEVICES)
_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """How to go on with a folder."""

    retry_failed: bool = False
    """Whether a case that ended otherwise than ok, oom or unsupported is measured again."""
    force: bool = False
    """Whether a different GPU, torch or schema is no reason to refuse."""
    infer: bool = False
    """Whether an out of memory that was only inferred counts."""


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """A folder and what is to be done in it."""

    path: Path
    manifest: Manifest | None
    """None where another process keeps it."""
    todo: Sequence[Case]
    """Asked for and without a final outcome, in the order asked for."""
    held: Sequence[Environment]
    """Environments of the records that stay, each once; they must be ours to add to them."""
    notices: Sequence[str]
    """What was found on the way, for the user."""

    def admit(self, environment: Environment) -> None:
        """InvalidConfig when what is measured in ``environment`` may not join what the folder holds."""
        alike = [one for one in self.held if (one.gpu_uuid is None) == (environment.gpu_uuid is None)]
        names = _COMPARED if alike else _COMPARED_ACROSS_DEVICES
        found = [_unlike(other, environment, names) for other in alike or self.held]
        if found and all(found):
            raise InvalidConfig("resume", self.path, f"{'; '.join(found[-1])}; {_FORCE}")

    def write_manifest(self) -> None:
        """From now on the folder is meant to hold these cases. OSError names the path."""
        if self.manifest is not None:
            write_manifest(self.manifest, self.path)


_FORCE = "resume_force=true mixes them"


def new_folder(parent: Path) -> Path:
    """A new folder named by the second, numbered when another sweep started in the same one.

    mkdir is atomic, so two sweeps never share a folder. InvalidConfig when it can't be made.
    """
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    attempt = 1
    while True:
        folder = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise InvalidConfig("output_dir", parent, "it is a file, a folder is needed") from None
            attempt += 1
        except OSError as error:
            raise InvalidConfig("output_dir", parent, f"{error.strerror}") from error
        else:
            return folder


def started(cases: Sequence[Case], parent: Path, command: str) -> SweepFolder:
    """A new folder under ``parent`` for ``cases``."""
    path = new_folder(parent)
    manifest = Manifest(sweep_id=path.name, commands=[], cases=[]).extended(cases, command)
    return SweepFolder(path, manifest, cases, held=[], notices=[])


def resumed(cases: Sequence[Case] | None, path: Path, command: str, how: Resume) -> SweepFolder:
    """``path`` gone on with for ``cases``, or for all that it was meant to hold. Nothing is written.

    InvalidConfig where ``path`` is no sweep, or holds records that may not be mixed with new ones.
    """
    manifest, notices = _manifest_of(path)
    held, skipped = records.read_sweep(path)
    if not how.force:
        _refuse_other_schemas(path, manifest, held, skipped)
    known = {record.key: record for record in held}
    if manifest is None:
        found = [PlannedCase(key=r.key, slug=r.slug, case=r.case) for r in held]
        manifest = Manifest(sweep_id=path.name, commands=[], cases=found)
    elif cases is not None:
        notices += _differences(manifest, cases)
    planned = {entry.key: entry.case for entry in manifest.cases}
    # As planned: another label of the same case would have another folder.
    cases = list(planned.values()) if cases is None else [planned.get(c.key, c) for c in cases]
    todo = [case for case in cases if not _counts(known.get(case.key), how)]
    for key in {case.key for case in todo}:
        known.pop(key, None)
    again = {records.record_path(path, case) for case in todo}
    for entry in skipped:
        then = "it is measured again" if entry.path in again else "its case is not in the grid; it stays"
        notices.append(f"{entry.path}: {entry.why}; {then}")
    notices.append(f"{len(todo)} of {len(cases)} cases are to do in {path}")
    extended = manifest.extended(cases, command).model_copy(update={"schema_version": SCHEMA_VERSION})
    environments = [] if how.force else _distinct(record.environment for record in known.values())
    return SweepFolder(path, extended, todo, environments, notices)


def joined(case: Case, path: Path, *, force: bool) -> SweepFolder:
    """``path``, which another process has made and will close, for one of its cases."""
    held, _ = records.read_sweep(path)
    others = [record.environment for record in held if record.key != case.key and not force]
    return SweepFolder(path, None, [case], _distinct(others), [])


def latest(parent: Path) -> Path:
    """The sweep under ``parent`` that was started last. InvalidConfig when there is none."""
    found = [(name, path) for path in _children(parent) if (name := _NAME.fullmatch(path.name))]
    sweeps = [(name[1], int(name[2] or 1), path) for name, path in found if _is_sweep(path)]
    if not sweeps:
        raise InvalidConfig("resume", LATEST, f"no sweep is in {parent}")
    return max(sweeps)[2]


@contextlib.contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """No other process runs this folder's cases meanwhile. InvalidConfig when one does."""
    lock = FileLock(path / ".lock", mode=0o666)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InvalidConfig("resume", path, "another process is running this sweep") from error
    except OSError as error:
        raise InvalidConfig("resume", path, f"can't be written to: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _manifest_of(path: Path) -> tuple[Manifest | None, list[str]]:
    if not _is_sweep(path):
        raise InvalidConfig("resume", path, "a folder that a sweep has left is needed, or latest")
    try:
        manifest, why = read_manifest(path), "there is none"
    except ValueError as error:
        manifest, why = None, str(error)
    if manifest is None:
        return None, [f"{manifest_path(path)}: {why}; it is made anew from the records and this grid"]
    return manifest, []


def _refuse_other_schemas(
    path: Path, manifest: Manifest | None, held: Sequence[Record], skipped: Sequence[Skipped]
) -> None:
    foreign = next((entry for entry in skipped if entry.foreign), None)
    if foreign is not None:
        raise InvalidConfig("resume", path, f"{foreign.path.parent.name}: {foreign.why}; {_FORCE}")
    versions = {record.schema_version for record in held} | (
        {manifest.schema_version} if manifest else set()
    )
    for version in versions - {SCHEMA_VERSION}:
        why = (
            f"its records have schema_version {version}, this release writes {SCHEMA_VERSION}; {_FORCE}"
        )
        raise InvalidConfig("resume", path, why)


def _counts(record: Record | None, how: Resume) -> bool:
    """Whether ``record`` spares its case another run."""
    if record is None:
        return False
    if record.outcome.inferred_from is not None and not how.infer:
        return False
    return record.outcome.status.expected or not how.retry_failed


def _differences(manifest: Manifest, cases: Sequence[Case]) -> list[str]:
    """How the grid asked for differs from what the folder was meant to hold."""
    planned = {entry.key for entry in manifest.cases}
    asked = {case.key for case in cases}
    notices = []
    if added := len(asked - planned):
        new = "1 case is new" if added == 1 else f"{added} cases are new"
        notices.append(f"{new} to this folder and extend{'s' if added == 1 else ''} its grid")
    if left := len(planned - asked):
        other = "1 case of this folder is" if left == 1 else f"{left} cases of this folder are"
        notices.append(f"{other} not in the grid asked for; they stay")
    return notices


def _unlike(there: Environment, here: Environment, names: Sequence[str]) -> list[str]:
    return [
        f"{name} {getattr(there, name)} there, {getattr(here, name)} here"
        for name in names
        if getattr(there, name) != getattr(here, name)
    ]


def _distinct(environments: Iterable[Environment]) -> list[Environment]:
    """One for each combination of what is compared."""
    found = {tuple(getattr(one, name) for name in _COMPARED): one for one in environments}
    return list(found.values())


def _is_sweep(path: Path) -> bool:
    return manifest_path(path).exists() or (path / records.CASES_FOLDER).is_dir()


def _children(parent: Path) -> list[Path]:
    return list(parent.iterdir()) if parent.is_dir() else []
