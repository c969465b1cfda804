"""``run.py`` as a user types it: sweeps, single cases, exit codes, and that nothing is left half done.

Most run in this process (isolation=inline), for torch takes seconds to import; workers are in
test_faults.py. HYDRA_FULL_ERROR and argv are restored.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import run as command_line
from attnscale.case import Case
from attnscale.measure import forward
from attnscale.record import Outcome, Record, Status, read_sweep, record_path
from attnscale.sweep import devices
from hydra_plugins.attnscale.sweeper import grid
from tests.processes import ROOT, TINY

INLINE = [*TINY, "isolation=inline"]


@pytest.fixture
def attnscale_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command line in another working directory; its exit code."""

    def call(*overrides: str, base: Sequence[str] | None = None) -> int:
        where = f"output_dir={tmp_path / 'out'}"
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setattr(
            sys, "argv", ["run.py", *overrides, *(INLINE if base is None else base), where]
        )
        with pytest.raises(SystemExit) as ended:
            command_line.cli()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    monkeypatch.chdir(tmp_path)
    return call


def only_sweep(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "out").iterdir()
    return folder


def records_of(tmp_path: Path) -> list[Record]:
    records, skipped = read_sweep(only_sweep(tmp_path))
    assert skipped == []
    return records


def test_a_grid_on_a_cpu(
    attnscale_run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnscale_run("-m", "backend=flash,math,cudnn", "seq=16,32") == 0
    found = {(r.case.backend, r.case.seq): r.outcome.status for r in records_of(tmp_path)}
    assert found == {
        (backend, seq): Status.UNSUPPORTED if backend == "cudnn" else Status.OK
        for backend in ("flash", "math", "cudnn")
        for seq in (16, 32)
    }
    out, err = capsys.readouterr()
    assert f"report: {only_sweep(tmp_path) / 'report.html'}" in out
    assert max(len(line) for line in out.splitlines() if " ok" in line) <= 80
    assert "[6/6]" in err


def test_one_case_prints_all_that_it_measured(
    attnscale_run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnscale_run("backend=flash", "seq=32") == 0
    out, _ = capsys.readouterr()
    for name in ("latency_ms", "first_call_ms", "tokens_per_s", "peak_allocated_bytes", "useful_flops"):
        assert name in out
    assert len(records_of(tmp_path)) == 1


@pytest.mark.parametrize("flag", [["-m"], []], ids=["with-m", "without-m"])
def test_a_sweep_file_sweeps_from_any_folder_and_the_command_line_wins(
    attnscale_run: Callable[..., int], tmp_path: Path, flag: list[str]
) -> None:
    assert attnscale_run(*flag, "sweeps=smoke", "seq=8", "backend=math,flash") == 0
    assert [(r.case.backend, r.case.seq) for r in records_of(tmp_path)] == [("math", 8), ("flash", 8)]


def test_a_repeated_value_runs_once_with_a_notice(
    attnscale_run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnscale_run("seq=16,16,16") == 0
    assert len(records_of(tmp_path)) == 1
    assert "is asked for 2 times more; it runs once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["backend=flash,math,falsh"], "attnscale: backend=falsh: must be one of auto, cudnn"),
        (["seq=16,32,1k"], "attnscale: seq=1k: a whole number"),
        (["seq=16,-1"], "attnscale: seq=-1: a whole number of tokens from 1"),
        (["seq=range(0.1,0.4,0.1)"], "attnscale: seq=0.1: a whole number"),
        (["seq=glob(*)"], "attnscale: seq=glob(*): no value matches"),
        (["backend=glob(x*)"], "attnscale: backend=glob(x*): no value matches"),
        (["+nope=1"], "attnscale: nope=1: there is no such key"),
        (["kv_heads=1,2"], "attnscale: kv_heads=1: arch=gpt has no grouped heads"),
        (["sweeps=typo"], "attnscale: sweeps=typo: must be one of batch"),
        (["hydra.mode=RUN"], "attnscale: hydra.mode=RUN: leave it out"),
        (["hydra.mode=null"], "attnscale: hydra.mode=null: leave it out"),
        (["--run"], "attnscale: --run=: leave it out"),
        (["hydra/launcher=basic"], "attnscale: hydra/launcher=basic: must be one of sweep"),
        (["hydra/sweeper=basic"], "attnscale: hydra/sweeper=basic: leave it out"),
        (["hydra.sweep.dir=x"], "attnscale: hydra.sweep.dir=x: output_dir names"),
        (["model=null"], "attnscale: model=null: one of its choices"),
        (["backend=null"], "attnscale: backend=null: one of its choices"),
        (["sweeps=seq,batch"], "attnscale: sweeps=seq,batch: one value is needed"),
        (["device=cuda"], "attnscale: device=cuda: no CUDA device is visible here (this torch is a CPU"),
        (["isolation=both"], "attnscale: isolation=both: must be one of worker, fresh, inline"),
        (["isolation=worker,fresh"], "attnscale: isolation=worker,fresh: one value is needed"),
        (["case_timeout_s=0"], "attnscale: case_timeout_s=0.0: a number of seconds above 0"),
        (["case_timeout_s=soon"], "attnscale: case_timeout_s=soon: a number is needed"),
        (["skip_hopeless=perhaps"], "attnscale: skip_hopeless=perhaps: true or false is needed"),
        (["resume=latest"], "attnscale: resume=latest: no sweep is in "),
        (["resume=nowhere"], "attnscale: resume="),
        (["retry=failed"], "attnscale: retry=failed: resume=FOLDER or latest is needed too"),
        (["resume_force=true"], "attnscale: resume_force=true: resume=FOLDER or latest is needed too"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nothing_runs_when_one_point_is_bad(
    attnscale_run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    line: str,
) -> None:
    monkeypatch.setattr(forward, "measure", lambda *_: pytest.fail("a case ran"))
    if "device=cuda" in overrides:
        monkeypatch.setattr(devices, "_torch_cuda", lambda: None)
        overrides = ["++device=cuda"]
        monkeypatch.setattr(sys.modules[__name__], "INLINE", [x for x in INLINE if x != "device=cpu"])
    assert attnscale_run(*overrides) == 2
    _, err = capsys.readouterr()
    assert err.startswith(line)
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_failed_case_is_exit_1_and_its_neighbours_run(
    attnscale_run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = forward.measure

    def measure(case: Case, _: object) -> Outcome:
        if case.seq == 16:
            return Outcome(status=Status.FAILED, reason="RuntimeError: on purpose", traceback="Trace")
        return real(case)

    monkeypatch.setattr(forward, "measure", measure)
    assert attnscale_run("seq=8,16,32") == 1
    assert [r.outcome.status for r in records_of(tmp_path)] == [Status.OK, Status.FAILED, Status.OK]
    out, _ = capsys.readouterr()
    assert "failed: gpt-flash-s16" in out
    assert "RuntimeError: on purpose (more in " in out


def test_an_out_of_memory_case_is_an_answer(
    attnscale_run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        forward, "measure", lambda *_: Outcome(status=Status.OOM, reason="2 GiB too much")
    )
    assert attnscale_run("seq=8,16") == 0
    assert "2 GiB too much" in (only_sweep(tmp_path) / "report.html").read_text()


def test_a_record_is_on_disk_the_moment_its_case_ends(
    attnscale_run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = forward.measure
    seen: list[int] = []

    def measure(case: Case, _: object) -> Outcome:
        seen.append(len(read_sweep(only_sweep(tmp_path))[0]))
        return real(case)

    monkeypatch.setattr(forward, "measure", measure)
    assert attnscale_run("seq=8,16,32") == 0
    assert seen == [0, 1, 2]


def test_a_record_says_where_and_how_it_was_made(
    attnscale_run: Callable[..., int], tmp_path: Path
) -> None:
    attnscale_run("seq=8")
    (record,) = records_of(tmp_path)
    path = only_sweep(tmp_path) / "cases" / record.case.folder_name / "record.json"
    raw = json.loads(path.read_text())
    assert raw["schema_version"] == 4
    assert raw["sweep_id"] == only_sweep(tmp_path).name
    assert raw["environment"]["command"].startswith("python run.py seq=8")
    assert len(raw["outcome"]["latency_samples_ms"]) >= 6
    assert raw["environment"]["nulls"]["gpu_uuid"] == "device is cpu"


def test_a_resumed_sweep_does_what_is_missing_damaged_or_asked_again(
    attnscale_run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = forward.measure
    measured: list[int] = []
    failing = {24}

    def measure(case: Case, _: object) -> Outcome:
        measured.append(case.seq)
        if case.seq in failing:
            return Outcome(status=Status.FAILED, reason="RuntimeError: on purpose", traceback="Trace")
        return real(case)

    def measured_by(*overrides: str, base: Sequence[str] | None = None) -> tuple[int, list[int]]:
        measured.clear()
        return attnscale_run(*overrides, base=base), list(measured)

    monkeypatch.setattr(forward, "measure", measure)
    assert measured_by("seq=8,16,24") == (1, [8, 16, 24])
    assert measured_by("seq=8,16,24", "resume=latest") == (1, [])
    (record,) = only_sweep(tmp_path).glob("cases/*s16*/record.json")
    record.write_text(record.read_text()[:500])
    assert measured_by("seq=8,16,24", f"resume={only_sweep(tmp_path)}") == (1, [16])
    assert f"{record}: the file: Invalid JSON" in capsys.readouterr().err
    failing.clear()
    assert measured_by("seq=8,16,24", "resume=latest", "retry=failed") == (0, [24])
    assert measured_by("seq=8,32", "resume=latest") == (0, [32])
    err = capsys.readouterr().err
    assert "1 case is new to this folder and extends its grid" in err
    assert "2 cases of this folder are not in the grid asked for; they stay" in err
    record.unlink()
    settings = ["tracker=none", "isolation=inline", "repeats=0"]
    assert measured_by("resume=latest", base=settings) == (0, [16])
    assert len(records_of(tmp_path)) == 4
    manifest = json.loads((only_sweep(tmp_path) / "sweep.json").read_text())
    assert [entry["case"]["seq"] for entry in manifest["cases"]] == [8, 16, 24, 32]
    assert len(manifest["commands"]) == 6


def test_a_sweep_of_another_torch_is_not_gone_on_with_unless_forced(
    attnscale_run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnscale_run("seq=8") == 0
    (path,) = only_sweep(tmp_path).glob("cases/*/record.json")
    path.write_text(re.sub(r'"torch": ".*"', '"torch": "2.0.0"', path.read_text()))
    held = {file: file.read_bytes() for file in only_sweep(tmp_path).rglob("*") if file.is_file()}
    capsys.readouterr()
    assert attnscale_run("seq=8,16", "resume=latest") == 2
    assert "torch 2.0.0 there, " in capsys.readouterr().err
    assert held == {
        file: file.read_bytes() for file in only_sweep(tmp_path).rglob("*") if file.is_file()
    }
    assert attnscale_run("seq=8,16", "resume=latest", "resume_force=true") == 0
    assert len(records_of(tmp_path)) == 2
    assert "ran in 2 different environments" in (only_sweep(tmp_path) / "report.html").read_text()


def test_gpus_are_one_value_of_the_sweep_and_no_axis() -> None:
    overrides = OverridesParser.create().parse_overrides(["gpus=0,2", "seq=8,16"])
    assert grid(overrides) == [["gpus='0,2'", "seq=8"], ["gpus='0,2'", "seq=16"]]


@pytest.mark.parametrize("given", ["math/flash:3,math/naive:2.5", '"math/flash:3,math/naive:2.5"'])
def test_a_guess_of_several_ratios_is_one_value(given: str) -> None:
    overrides = OverridesParser.create().parse_overrides([f"guess.ratio={given}", "seq=8,16"])
    text = "guess.ratio='math/flash:3,math/naive:2.5'"
    assert grid(overrides) == [[text, "seq=8"], [text, "seq=16"]]


@pytest.mark.parametrize("base", [INLINE, TINY], ids=["inline", "worker"])
def test_a_kept_trace_lies_beside_its_record_and_a_silent_case_has_no_log(
    attnscale_run: Callable[..., int], tmp_path: Path, base: Sequence[str]
) -> None:
    assert attnscale_run("seq=8", "trace=keep", base=base) == 0
    (record,) = records_of(tmp_path)
    assert record.outcome.profile is not None
    case = record_path(only_sweep(tmp_path), record.case).parent
    assert {path.name for path in case.iterdir()} == {"record.json", "forward.pt.trace.json.gz"}
    assert record.outcome.profile.trace_file == "forward.pt.trace.json.gz"


def test_a_guess_is_in_the_manifest_before_anything_is_measured(
    attnscale_run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def measure(_: Case, __: object) -> Outcome:
        manifest = only_sweep(tmp_path) / "sweep.json"
        seen.extend(json.loads(manifest.read_text())["guesses"])
        return Outcome(status=Status.OOM, reason="2 GiB too much")

    monkeypatch.setattr(forward, "measure", measure)
    guess = ["guess.fastest=math", "guess.ratio=math/flash:3,math/naive:2.5", "guess.kernels=math:20"]
    assert attnscale_run("seq=8", *guess) == 0
    (guessed,) = seen
    assert guessed.pop("at")
    assert guessed == {
        "fastest": "math",
        "ratio": {"math/flash": 3.0, "math/naive": 2.5},
        "kernels": {"math": 20},
    }


def test_an_output_dir_that_is_a_file_is_one_line(
    attnscale_run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file")
    assert attnscale_run("seq=8") == 2
    assert "output_dir=" in capsys.readouterr().err


def test_the_parent_of_a_sweep_loads_no_torch(tmp_path: Path) -> None:
    """So it can't touch CUDA; its worker has measured with it."""
    code = (
        "import sys, run\n"
        "if __name__ == '__main__':\n"
        "    try: run.cli()\n"
        "    finally: assert 'torch' not in sys.modules, 'torch was loaded'\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}")
    overrides = [*TINY, "seq=8", "isolation=worker", f"output_dir={tmp_path / 'out'}"]
    done = subprocess.run(
        [sys.executable, str(script), *overrides],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (record,) = records_of(tmp_path)
    assert record.outcome.status is Status.OK
    assert record.environment.isolation == "worker"


def test_help_is_quick_because_nothing_heavy_loads() -> None:
    code = (
        "import sys; sys.argv = ['run.py', '--help']; import run\n"
        "try: run.cli()\n"
        "finally:\n"
        "    heavy = {'torch', 'wandb', 'pandas', 'seaborn', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tokens in each sequence" in done.stdout
