"""The folder of a sweep: new, gone on with after any damage, and never mixed by accident."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attnscale import record as records
from attnscale.case import Case, InvalidConfig
from attnscale.manifest import Manifest, manifest_path, read_manifest, write_manifest
from attnscale.record import Environment, Record, Status, record_path
from attnscale.sweep import folder as folders
from attnscale.sweep.folder import (
    Resume,
    SweepFolder,
    held_alone,
    joined,
    latest,
    new_folder,
    resumed,
    started,
)
from tests.conftest import ENVIRONMENT, as_schema_2, make_case, make_record

GRID = [make_case(seq=seq) for seq in (16, 32, 64)]
FIRST = "python run.py seq=16,32,64"
AGAIN = "python run.py resume=latest"


def swept(path: Path, grid: Iterable[Case] = GRID, found: Iterable[Record] = ()) -> Path:
    """A folder as a sweep of ``grid`` leaves it that got as far as ``found``."""
    path.mkdir(exist_ok=True)
    manifest = Manifest(sweep_id=path.name, commands=[], cases=[]).extended(grid, FIRST)
    write_manifest(manifest, path)
    for record in found:
        records.write(record, path)
    return path


def go_on(path: Path, cases: Sequence[Case] | None = GRID, **how: bool) -> SweepFolder:
    return resumed(cases, path, AGAIN, Resume(**how))


def planned(folder: SweepFolder) -> list[Case]:
    assert folder.manifest is not None
    return [entry.case for entry in folder.manifest.cases]


def seqs(cases: Iterable[Case]) -> list[int]:
    return [case.seq for case in cases]


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def files_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


# New folders


def test_a_new_folder_is_named_by_the_second(tmp_path: Path) -> None:
    path = new_folder(tmp_path / "not" / "there")
    assert path.is_dir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", path.name)


def test_sweeps_that_start_together_get_a_folder_each(tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(new_folder(tmp_path / "out"))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 12
    assert all(folders._NAME.fullmatch(path.name) for path in made)


@pytest.mark.parametrize("below", ["", "folder", "folder/folder"], ids=["itself", "child", "deeper"])
def test_a_file_where_a_folder_is_due_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    parent = tmp_path / "file" / below
    assert refused(lambda: new_folder(parent)).startswith(f"output_dir={parent}: ")


def test_a_link_to_nowhere_is_no_place_for_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    message = refused(lambda: new_folder(tmp_path / "link"))
    assert message == f"output_dir={tmp_path / 'link'}: it is a file, a folder is needed"


def test_a_new_sweep_does_everything_and_mixes_with_nothing(tmp_path: Path) -> None:
    folder = started(GRID, tmp_path, FIRST)
    assert folder.todo == GRID
    assert (list(folder.held), list(folder.notices)) == ([], [])
    folder.admit(ENVIRONMENT)
    folder.write_manifest()
    manifest = read_manifest(folder.path)
    assert manifest == folder.manifest
    assert manifest is not None
    assert (manifest.sweep_id, manifest.commands) == (folder.path.name, [FIRST])


# Going on


@pytest.mark.parametrize("asked", [GRID, None], ids=["same-grid", "no-grid"])
def test_only_what_is_missing_is_done(tmp_path: Path, asked: Sequence[Case] | None) -> None:
    path = swept(tmp_path, found=[make_record(GRID[1])])
    folder = go_on(path, asked)
    assert seqs(folder.todo) == [16, 64]
    assert planned(folder) == GRID
    assert folder.notices == [f"2 of 3 cases are to do in {path}"]


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    path = swept(tmp_path, found=map(make_record, GRID))
    folder = go_on(path)
    assert folder.todo == []
    assert folder.notices == [f"0 of 3 cases are to do in {path}"]


def test_going_on_writes_nothing_until_told_to(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0])])
    before = files_of(path)
    folder = go_on(path, [make_case(seq=128)])
    assert files_of(path) == before
    folder.write_manifest()
    manifest = read_manifest(path)
    assert manifest is not None
    assert seqs(entry.case for entry in manifest.cases) == [16, 32, 64, 128]
    assert manifest.commands == [FIRST, AGAIN]


@pytest.mark.parametrize("status", list(Status))
def test_only_what_failed_is_tried_again_and_only_when_asked(tmp_path: Path, status: Status) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0], status=status)])
    answered = status in (Status.OK, Status.OOM, Status.UNSUPPORTED)
    assert seqs(go_on(path).todo) == [32, 64]
    assert seqs(go_on(path, retry_failed=True).todo) == ([32, 64] if answered else [16, 32, 64])


@pytest.mark.parametrize("infer", [True, False], ids=["skip_hopeless", "measuring"])
def test_an_inferred_outcome_counts_only_for_who_infers(tmp_path: Path, infer: bool) -> None:
    record = make_record(GRID[1], status=Status.OOM)
    outcome = record.outcome.model_copy(update={"inferred_from": GRID[0].key})
    found = [make_record(GRID[0]), record.model_copy(update={"outcome": outcome})]
    path = swept(tmp_path, found=found)
    assert seqs(go_on(path, infer=infer).todo) == ([64] if infer else [32, 64])
    assert seqs(go_on(path, None, infer=infer).todo) == ([64] if infer else [32, 64])


@pytest.mark.parametrize(
    ("asked", "todo", "says"),
    [
        ([16, 32, 64, 128], [64, 128], ["1 case is new to this folder and extends its grid"]),
        (
            [256, 16, 32, 64, 128],
            [256, 64, 128],
            ["2 cases are new to this folder and extend its grid"],
        ),
        ([16, 64], [64], ["1 case of this folder is not in the grid asked for; they stay"]),
        ([64], [64], ["2 cases of this folder are not in the grid asked for; they stay"]),
        (
            [64, 128],
            [64, 128],
            [
                "1 case is new to this folder and extends its grid",
                "2 cases of this folder are not in the grid asked for; they stay",
            ],
        ),
    ],
    ids=["one-more", "two-more", "one-less", "two-less", "other"],
)
def test_another_grid_extends_the_folder_and_says_so(
    tmp_path: Path, asked: list[int], todo: list[int], says: list[str]
) -> None:
    path = swept(tmp_path, found=map(make_record, GRID[:2]))
    folder = go_on(path, [make_case(seq=seq) for seq in asked])
    assert seqs(folder.todo) == todo
    assert seqs(planned(folder)) == [16, 32, 64, *(seq for seq in asked if seq not in (16, 32, 64))]
    assert folder.notices[:-1] == says


def test_a_label_is_no_reason_to_measure_again(tmp_path: Path) -> None:
    path = swept(tmp_path, found=map(make_record, GRID))
    assert go_on(path, [make_case(seq=seq, model="mine") for seq in (16, 32)]).todo == []


# Damage

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "not-text": lambda data: b"\xff\xfe" + data,
    "a-list": lambda data: b"[]",
}
damages = pytest.mark.parametrize("damage", list(DAMAGE.values()), ids=list(DAMAGE))


@damages
def test_a_damaged_record_is_named_and_measured_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = swept(tmp_path, found=map(make_record, GRID))
    bad = record_path(path, GRID[1])
    bad.write_bytes(damage(bad.read_bytes()))
    for asked in (GRID, None):
        folder = go_on(path, asked)
        assert seqs(folder.todo) == [32]
        assert folder.notices[0].startswith(f"{bad}: ")
        assert folder.notices[0].endswith("; it is measured again")
        assert len(folder.notices) == 2


def test_a_damaged_record_that_is_not_measured_again_is_not_said_to_be(tmp_path: Path) -> None:
    path = swept(tmp_path, found=map(make_record, GRID))
    bad = record_path(path, GRID[1])
    bad.write_bytes(b"")
    folder = go_on(path, GRID[:1])
    assert folder.todo == []
    assert [notice for notice in folder.notices if str(bad) in notice]
    assert not [notice for notice in folder.notices if "it is measured again" in notice]


@damages
def test_a_damaged_manifest_is_named_and_made_anew_from_records_and_grid(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = swept(tmp_path, found=[make_record(make_case(seq=8)), make_record(GRID[1])])
    bad = manifest_path(path)
    bad.write_bytes(damage(bad.read_bytes()))
    folder = go_on(path)
    assert seqs(folder.todo) == [16, 64]
    assert sorted(seqs(planned(folder))) == [8, 16, 32, 64]
    assert folder.notices[0].startswith(f"{bad}: ")
    assert folder.notices[0].endswith("; it is made anew from the records and this grid")
    folder.write_manifest()
    assert read_manifest(path) == folder.manifest
    assert folder.manifest is not None
    assert (folder.manifest.sweep_id, folder.manifest.commands) == (path.name, [AGAIN])


def test_an_absent_manifest_is_made_anew_from_records_and_grid(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(make_case(seq=8)), make_record(GRID[1])])
    manifest_path(path).unlink()
    folder = go_on(path)
    assert seqs(folder.todo) == [16, 64]
    assert sorted(seqs(planned(folder))) == [8, 16, 32, 64]


def test_an_absent_manifest_is_named(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(GRID[1])])
    manifest_path(path).unlink()
    assert str(manifest_path(path)) in go_on(path).notices[0]


@pytest.mark.parametrize("damage", [*DAMAGE.values(), None], ids=[*DAMAGE, "absent"])
def test_without_a_manifest_and_a_grid_what_has_a_record_is_the_grid(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None
) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0]), make_record(GRID[1], status=Status.FAILED)])
    manifest_path(path).write_bytes((damage or DAMAGE["empty"])(manifest_path(path).read_bytes()))
    if damage is None:
        manifest_path(path).unlink()
    assert seqs(go_on(path, None).todo) == []
    assert seqs(go_on(path, None, retry_failed=True).todo) == [32]
    assert sorted(seqs(planned(go_on(path, None)))) == [16, 32]


def truncations(path: Path) -> Iterator[tuple[int, bool]]:
    """Cut ``path`` at every 50th byte and put it back: where, and whether it is still whole."""
    data = path.read_bytes()
    for length in range(0, len(data), 50):
        path.write_bytes(data[:length])
        yield length, length >= len(data.rstrip())
    path.write_bytes(data)


@pytest.mark.parametrize("count", [1, 2, 3], ids=["one", "two", "three"])
@pytest.mark.parametrize("manifest", ["whole", "cut", "absent"])
def test_wherever_a_write_was_cut_off_only_that_is_done_again(
    tmp_path: Path, count: int, manifest: str
) -> None:
    """A file system may keep no more than a beginning of the newest files."""
    stamps = [f"2026-12-01T00:00:0{second}+00:00" for second in range(count)]
    found = [make_record(case, started_at=at) for case, at in zip(GRID, stamps, strict=False)]
    path = swept(tmp_path, found=found)
    missing = seqs(GRID[count:])
    newest = record_path(path, GRID[count - 1])
    plan = manifest_path(path).read_bytes()
    if manifest == "absent":
        manifest_path(path).unlink()
    for length, whole in truncations(newest):
        if manifest == "cut":
            manifest_path(path).write_bytes(plan[: length % len(plan)])
        folder = go_on(path)
        assert seqs(folder.todo) == ([] if whole else [GRID[count - 1].seq]) + missing, length
        assert set(seqs(planned(folder))) == set(seqs(GRID)), length
        assert any(str(newest) in notice for notice in folder.notices) is not whole, length
        assert len(folder.held) == (0 if count == 1 and not whole else 1), length
    assert seqs(go_on(path).todo) == missing


def test_wherever_the_manifest_was_cut_off_no_record_is_lost(tmp_path: Path) -> None:
    path = swept(tmp_path, found=map(make_record, GRID[:2]))
    for length, whole in truncations(manifest_path(path)):
        assert seqs(go_on(path).todo) == [64], length
        assert seqs(go_on(path, None).todo) == ([64] if whole else []), length
    assert read_manifest(path) is not None


# Other schemas


def old(path: Path) -> None:
    def change(text: str) -> str:
        raw = json.loads(text)
        if "cases" in raw:
            planned = [as_schema_2(one) for one in raw["cases"]]
            return json.dumps(raw | {"schema_version": 2, "cases": planned})
        return json.dumps(as_schema_2(raw))

    edit(path, change)


def newer(path: Path) -> None:
    edit(path, lambda text: text.replace('"schema_version": 4', '"schema_version": 99'))


@pytest.mark.parametrize("which", ["record", "manifest"])
def test_an_older_schema_is_refused_unless_forced(tmp_path: Path, which: str) -> None:
    path = swept(tmp_path, found=map(make_record, GRID[:2]))
    old(record_path(path, GRID[0]) if which == "record" else manifest_path(path))
    message = refused(lambda: go_on(path))
    why = "its records have schema_version 2, this release writes 4; resume_force=true mixes them"
    assert message == f"resume={path}: {why}"
    folder = go_on(path, force=True)
    assert seqs(folder.todo) == [64]
    assert folder.manifest is not None
    assert folder.manifest.schema_version == 4


def test_a_newer_record_is_refused_and_measured_again_when_forced(tmp_path: Path) -> None:
    path = swept(tmp_path, found=map(make_record, GRID[:2]))
    newer(record_path(path, GRID[0]))
    message = refused(lambda: go_on(path))
    why = "schema_version 99, this release reads 1 to 4; resume_force=true mixes them"
    assert message == f"resume={path}: {GRID[0].folder_name}: {why}"
    folder = go_on(path, force=True)
    assert seqs(folder.todo) == [16, 64]
    assert folder.notices[0].startswith(f"{record_path(path, GRID[0])}: schema_version 99, ")


def test_a_newer_manifest_is_refused_unless_forced(tmp_path: Path) -> None:
    path = swept(tmp_path)
    newer(manifest_path(path))
    assert "schema_version 99, this release writes 4" in refused(lambda: go_on(path))
    assert seqs(go_on(path, force=True).todo) == [16, 32, 64]


# Other environments

ON_GPU = ENVIRONMENT.model_copy(
    update={
        "device_name": "NVIDIA H200",
        "gpu_uuid": "GPU-1",
        "gpu_memory_bytes": 2**37,
        "driver": "580.65",
        "cuda": "13.0",
        "cudnn": 91002,
        "nulls": {},
    }
)


def but(environment: Environment, **changes: Any) -> Environment:
    return environment.model_copy(update=changes)


def holding(path: Path, *environments: Environment, force: bool = False) -> SweepFolder:
    """A folder with a record from each of ``environments``, gone on with for a larger case."""
    cases = [
        make_case(seq=8 * (1 + index), device="cpu" if one.gpu_uuid is None else "cuda")
        for index, one in enumerate(environments)
    ]
    grid = [*cases, make_case(seq=1024)]
    found = [
        make_record(case, environment=one, started_at=f"2026-12-01T00:00:0{index}+00:00")
        for index, (case, one) in enumerate(zip(cases, environments, strict=True))
    ]
    return go_on(swept(path, grid, found), grid, force=force)


@pytest.mark.parametrize(
    ("there", "changes", "says"),
    [
        (ENVIRONMENT, {"torch": "2.12.0"}, "torch 2.13.0+cpu there, 2.12.0 here"),
        (ENVIRONMENT, {"python": "3.12.1"}, "python 3.11.7 there, 3.12.1 here"),
        (ENVIRONMENT, {"device_name": "Other CPU"}, "device_name Test CPU there, Other CPU here"),
        (ON_GPU, {"torch": "2.12.0"}, "torch 2.13.0+cpu there, 2.12.0 here"),
        (ON_GPU, {"device_name": "NVIDIA A100"}, "device_name NVIDIA H200 there, NVIDIA A100 here"),
        (ON_GPU, {"driver": "570.1"}, "driver 580.65 there, 570.1 here"),
        (ON_GPU, {"cuda": "12.8"}, "cuda 13.0 there, 12.8 here"),
        (ON_GPU, {"cudnn": 92000}, "cudnn 91002 there, 92000 here"),
        (ON_GPU, {"cudnn": None}, "cudnn 91002 there, None here"),
        (
            ON_GPU,
            {"device_name": "NVIDIA A100", "cudnn": 92000, "torch": "2.12.0"},
            "device_name NVIDIA H200 there, NVIDIA A100 here; cudnn 91002 there, 92000 here; "
            "torch 2.13.0+cpu there, 2.12.0 here",
        ),
    ],
    ids=[
        "torch",
        "python",
        "cpu",
        "torch-on-gpu",
        "gpu",
        "driver",
        "cuda",
        "cudnn",
        "no-cudnn",
        "several",
    ],
)
def test_what_differs_is_named_with_both_values_and_force_mixes_it(
    tmp_path: Path, there: Environment, changes: dict[str, Any], says: str
) -> None:
    here = but(there, **changes)
    folder = holding(tmp_path, there)
    message = refused(lambda: folder.admit(here))
    assert message == f"resume={tmp_path}: {says}; resume_force=true mixes them"
    folder.admit(there)
    holding(tmp_path, there, force=True).admit(here)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_uuid": "GPU-2"},
        {"host": "elsewhere"},
        {"threads": 64},
        {"git_commit": "abc"},
        {"command": "python run.py seq=1"},
        {"foreign_processes": ["python (pid 7)"]},
        {"isolation": "fresh"},
        {"packages": {}},
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_what_times_do_not_depend_on_may_differ(tmp_path: Path, changes: dict[str, Any]) -> None:
    holding(tmp_path, ON_GPU).admit(but(ON_GPU, **changes))


def test_records_of_cpu_and_gpu_are_each_compared_with_their_kind(tmp_path: Path) -> None:
    folder = holding(tmp_path, ENVIRONMENT, ON_GPU)
    folder.admit(ENVIRONMENT)
    folder.admit(ON_GPU)
    other_cpu, other_gpu = but(ENVIRONMENT, device_name="Other CPU"), but(ON_GPU, cudnn=1)
    assert "device_name Test CPU there, Other CPU here" in refused(lambda: folder.admit(other_cpu))
    assert "cudnn 91002 there, 1 here" in refused(lambda: folder.admit(other_gpu))


@pytest.mark.parametrize(
    ("there", "here"), [(ENVIRONMENT, ON_GPU), (ON_GPU, ENVIRONMENT)], ids=["cpu-first", "gpu-first"]
)
def test_the_first_of_its_kind_must_share_torch_and_python_alone(
    tmp_path: Path, there: Environment, here: Environment
) -> None:
    folder = holding(tmp_path, there)
    folder.admit(here)
    message = refused(lambda: folder.admit(but(here, torch="2.12.0")))
    assert message.endswith(": torch 2.13.0+cpu there, 2.12.0 here; resume_force=true mixes them")


def test_a_folder_that_was_mixed_by_force_admits_whatever_it_holds(tmp_path: Path) -> None:
    other = but(ON_GPU, device_name="NVIDIA A100")
    folder = holding(tmp_path, ON_GPU, other)
    folder.admit(ON_GPU)
    folder.admit(other)
    assert "device_name" in refused(lambda: folder.admit(but(ON_GPU, device_name="NVIDIA L4")))


def test_a_record_that_is_measured_again_admits_any_environment(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0], status=Status.CRASHED)])
    other = but(ENVIRONMENT, torch="2.12.0")
    assert "torch" in refused(lambda: go_on(path).admit(other))
    go_on(path, retry_failed=True).admit(other)


def test_who_joins_must_fit_what_is_there(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0])])
    before = files_of(path)
    folder = joined(GRID[1], path, force=False)
    assert (folder.todo, folder.manifest, folder.notices) == ([GRID[1]], None, [])
    folder.admit(ENVIRONMENT)
    assert "torch" in refused(lambda: folder.admit(but(ENVIRONMENT, torch="2.12.0")))
    folder.write_manifest()
    assert files_of(path) == before


def test_who_joins_is_not_compared_with_the_record_that_it_replaces(tmp_path: Path) -> None:
    path = swept(tmp_path, found=[make_record(GRID[0], status=Status.CRASHED)])
    joined(GRID[0], path, force=False).admit(but(ENVIRONMENT, torch="2.12.0"))


# Which folder


def nothing(path: Path) -> Path:
    return path / "nothing"


def a_file(path: Path) -> Path:
    (path / "file").write_text("{}")
    return path / "file"


def an_empty_folder(path: Path) -> Path:
    return path


def a_folder_of_other_things(path: Path) -> Path:
    (path / "results.csv").touch()
    (path / "cases").touch()
    return path


@pytest.mark.parametrize("what", [nothing, a_file, an_empty_folder, a_folder_of_other_things])
def test_what_no_sweep_has_left_is_refused(tmp_path: Path, what: Callable[[Path], Path]) -> None:
    path = what(tmp_path)
    message = refused(lambda: go_on(path))
    assert message == f"resume={path}: a folder that a sweep has left is needed, or latest"


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (["2026-12-01_09-30-00"], "2026-12-01_09-30-00"),
        (["2026-12-01_09-30-00", "2026-11-30_23-59-59"], "2026-12-01_09-30-00"),
        (["2026-12-01_09-30-00", "2026-12-01_09-30-00-2"], "2026-12-01_09-30-00-2"),
        (
            [f"2026-12-01_09-30-00{suffix}" for suffix in ("", "-2", "-9", "-10")],
            "2026-12-01_09-30-00-10",
        ),
        (["2026-12-01_09-30-00-10", "2026-12-01_09-30-01"], "2026-12-01_09-30-01"),
        (
            ["2026-12-01_09-30-00", "2026-12-01_09-30-01-copy", "old", "zzz", "2027", ".2026-12-02"],
            "2026-12-01_09-30-00",
        ),
    ],
    ids=["only", "later", "second-in-a-second", "tenth-in-a-second", "next-second", "other-names"],
)
def test_the_latest_is_told_by_its_name(tmp_path: Path, names: list[str], last: str) -> None:
    for age, name in enumerate(names):
        path = swept(tmp_path / name)
        os.utime(path, (age, age))
    assert latest(tmp_path).name == last


def test_the_latest_is_a_sweep(tmp_path: Path) -> None:
    swept(tmp_path / "2026-12-01_09-30-00")
    (tmp_path / "2026-12-01_09-30-01").mkdir()
    (tmp_path / "2026-12-01_09-30-02").touch()
    (tmp_path / "2026-12-01_09-30-03").symlink_to(tmp_path / "nowhere")
    assert latest(tmp_path).name == "2026-12-01_09-30-00"


def test_a_folder_without_a_manifest_but_with_cases_can_be_the_latest(tmp_path: Path) -> None:
    records.write(make_record(), tmp_path / "2026-12-01_09-30-00")
    assert latest(tmp_path).name == "2026-12-01_09-30-00"


@pytest.mark.parametrize("what", [nothing, a_file, an_empty_folder])
def test_without_any_sweep_there_is_no_latest(tmp_path: Path, what: Callable[[Path], Path]) -> None:
    parent = what(tmp_path)
    assert refused(lambda: latest(parent)) == f"resume=latest: no sweep is in {parent}"


# One process at a time

HOLDER = """
import sys
from pathlib import Path
from attnscale.sweep.folder import held_alone
with held_alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the sweep in ``path`` until it is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def hold(path: Path) -> None:
    with held_alone(path):
        pass


def test_a_folder_that_another_process_runs_is_refused_until_that_is_killed(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        message = refused(lambda: hold(tmp_path))
        assert message == f"resume={tmp_path}: another process is running this sweep"
        assert holder.poll() is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        hold(tmp_path)


def test_a_folder_is_free_after_its_sweep_even_if_that_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held_alone(tmp_path):
        raise ZeroDivisionError
    hold(tmp_path)
    hold(tmp_path)


def test_where_nothing_can_be_written_no_sweep_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = refused(lambda: hold(tmp_path / "file"))
    assert message.startswith(f"resume={tmp_path / 'file'}: can't be written to: ")
