"""The manifest: which cases a sweep's folder is meant to hold, whether they were measured or not.

``SWEEP/sweep.json``, written whole or not at all. Outcomes and environments are in the records and
nowhere else. This module is one of the shared words: it imports no room of the project.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from attnscale.case import Case
from attnscale.record import (
    BEFORE_3,
    SCHEMA_VERSION,
    first_problem,
    json_object,
    upgraded_case,
    write_atomically,
)

MANIFEST_NAME = "sweep.json"


class PlannedCase(BaseModel):
    """One point of the grid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    slug: str
    case: Case

    @model_validator(mode="after")
    def _key_is_its_cases(self) -> Self:
        if self.key != self.case.key:
            raise ValueError(f"key {self.key} is not that of its case, {self.case.key}")
        return self


class Guess(BaseModel):
    """What a user expects, written down before it is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: str
    """ISO 8601, UTC. What was measured before is not compared with it."""
    fastest: str | None = None
    """Backend, at every shape."""
    ratio: dict[str, float] = {}
    """slower/faster -> time of the one over the other."""
    kernels: dict[str, int] = {}
    """Backend -> kernels of one attention call."""


class Manifest(BaseModel):
    """What a folder is meant to hold."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # one of a later release is no damage

    schema_version: int = SCHEMA_VERSION
    """Of the records in the folder."""
    sweep_id: str
    commands: Sequence[str]
    """Every command that asked for cases of this folder, oldest first."""
    cases: Sequence[PlannedCase]
    """In the order first asked for."""
    guesses: Sequence[Guess] = []

    def extended(self, cases: Iterable[Case], command: str) -> Self:
        """With the cases of one more command; those already planned stay where they are."""
        planned = {entry.key: entry for entry in self.cases}
        for case in cases:
            planned.setdefault(case.key, PlannedCase(key=case.key, slug=case.slug, case=case))
        commands = [*self.commands, command]
        return self.model_copy(update={"cases": list(planned.values()), "commands": commands})


def manifest_path(sweep: Path) -> Path:
    """Where the manifest of a sweep lies."""
    return sweep / MANIFEST_NAME


def write_manifest(manifest: Manifest, sweep: Path) -> None:
    """Atomically and durably."""
    write_atomically(manifest_path(sweep), manifest.model_dump_json(indent=1) + "\n")


def read_manifest(sweep: Path) -> Manifest | None:
    """None where there is none. ValueError with one line when it is damaged."""
    try:
        data = manifest_path(sweep).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    raw = json_object(data)
    try:
        if raw.get("schema_version") in BEFORE_3:
            raw["cases"] = [planned | upgraded_case(planned) for planned in raw["cases"]]
        return Manifest.model_validate(raw)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"the file: {type(error).__name__}: {error}") from error
