"""The manifest on disk: whole or not there, read or named, extended without losing anything."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from attnscale.case import Case
from attnscale.manifest import Manifest, manifest_path, read_manifest, write_manifest
from attnscale.record import SCHEMA_VERSION
from tests.conftest import make_case

GRID = [make_case(seq=seq) for seq in (64, 16, 32)]
COMMAND = "python run.py seq=64,16,32"
EMPTY = Manifest(sweep_id="test-sweep", commands=[], cases=[])


def cases(manifest: Manifest) -> list[Case]:
    return [entry.case for entry in manifest.cases]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a manifest that was written."""
    write_manifest(EMPTY.extended(GRID, COMMAND), tmp_path)
    return manifest_path(tmp_path)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    manifest = EMPTY.extended(GRID, "python run.py 'model=ä\"\\'").extended([], "")
    write_manifest(manifest, tmp_path)
    assert manifest_path(tmp_path) == tmp_path / "sweep.json"
    assert read_manifest(tmp_path) == manifest
    assert manifest.schema_version == SCHEMA_VERSION


@pytest.mark.parametrize(
    "change",
    [{}, {"arch": "llama", "heads": 4, "kv_heads": 2}, {"causal": False}, {"seed": 2**31 - 1}],
    ids=["gpt", "grouped", "full", "large-seed"],
)
def test_a_case_comes_back_with_its_key(tmp_path: Path, change: dict[str, object]) -> None:
    case = make_case(**change)
    write_manifest(EMPTY.extended([case], COMMAND), tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    (entry,) = manifest.cases
    assert entry.case == case
    assert (entry.key, entry.slug) == (case.key, case.slug) == (entry.case.key, entry.case.slug)


def test_a_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "Invalid JSON"),
        (lambda text: "", "Invalid JSON"),
        (lambda text: "\0" * len(text), "Invalid JSON"),
        (lambda text: "[]", "an object"),
        (lambda text: text.replace('"sweep_id"', '"sweep"'), "sweep_id: Field required"),
        (lambda text: text.replace('"seq": 16', '"seq": 0'), "cases.1.case: Value error, seq=0"),
        (lambda text: text.replace('"seed": 0', '"sown": 0'), "cases.0.case.seed: Field required"),
        (lambda text: text.replace('"schema_version": 4', '"schema_version": "new"'), "schema_version"),
        (lambda text: text.replace('"cases": [', '"cases": [7,'), "cases.0: Input should be"),
    ],
    ids=[
        "truncated",
        "empty",
        "zeros",
        "list",
        "missing-field",
        "invalid-case",
        "other-case",
        "schema",
        "no-case",
    ],
)
def test_damage_is_one_line_that_says_where(path: Path, damage: Callable[[str], str], why: str) -> None:
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(ValueError, match=r"^\S") as caught:
        read_manifest(path.parent)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_beginning_of_a_manifest_is_damaged(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data.rstrip()), 7):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="Invalid JSON"):
            read_manifest(path.parent)


def test_bytes_that_are_no_text_are_damage(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="Invalid JSON"):
        read_manifest(path.parent)


def test_a_folder_in_its_place_is_damage(tmp_path: Path) -> None:
    manifest_path(tmp_path).mkdir()
    with pytest.raises(ValueError, match=r"^Is a directory$"):
        read_manifest(tmp_path)


def test_a_file_in_place_of_the_sweep_is_damage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^Not a directory$"):
        read_manifest(tmp_path / "file")


def test_a_failed_write_names_the_file_and_leaves_what_was_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_manifest(EMPTY, path.parent)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_cases_keep_the_order_in_which_they_were_first_asked_for() -> None:
    more = [make_case(seq=seq) for seq in (128, 32, 8, 128)]
    manifest = EMPTY.extended(GRID, COMMAND).extended(more, "again")
    assert [case.seq for case in cases(manifest)] == [64, 16, 32, 128, 8]
    assert manifest.commands == [COMMAND, "again"]


def test_a_case_that_is_there_keeps_its_label_and_slug() -> None:
    manifest = EMPTY.extended(GRID, COMMAND).extended([make_case(seq=64, model="mine")], "again")
    assert cases(manifest) == GRID
    assert manifest.cases[0].slug == GRID[0].slug


def test_the_same_command_twice_is_kept_twice() -> None:
    manifest = EMPTY.extended(GRID, COMMAND).extended(GRID, COMMAND)
    assert cases(manifest) == GRID
    assert manifest.commands == [COMMAND, COMMAND]


def test_extending_leaves_the_manifest_at_hand_as_it_was() -> None:
    first = EMPTY.extended(GRID, COMMAND)
    before = first.model_dump_json()
    first.extended([make_case(seq=128)], "again")
    assert first.model_dump_json() == before
    assert (EMPTY.commands, EMPTY.cases) == ([], [])


def test_sampling_otherwise_is_another_case() -> None:
    case = GRID[0]
    longer = dataclasses.replace(case, timing=dataclasses.replace(case.timing, min_samples=7))
    assert len(EMPTY.extended([case, longer], COMMAND).cases) == 2


def test_a_manifest_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        EMPTY.sweep_id = "other"
