"""W&B runs read back by W&B's own reader; no connection offline; an outage online costs no result."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnscale import record as records
from attnscale.case import Case
from attnscale.record import Record, Status
from tests.evidence.profiles import profile

LOG_ALL = """
import sys
from pathlib import Path
from attnscale.record import read_sweep
from attnscale.report.build import build_report
from attnscale.report.tracker import Settings, open_tracker
sweep = Path(sys.argv[1])
settings = Settings(online=sys.argv[2] == "online", project="p" * 90, entity=None, online_timeout_s=2)
tracker = open_tracker(settings, sweep)
for record in read_sweep(sweep)[0]:
    tracker.log_case(record)
built = build_report(sweep)
tracker.log_report(sweep.name, built.table, list(built.figures))
"""


class Listener:
    """Accepts connections, counts them and closes them."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.server.close()


@pytest.fixture
def sweep(make_record: Callable[..., Record], make_case: Callable[..., Case], tmp_path: Path) -> Path:
    """One case of each kind, two of them ok; the label is longer than a W&B name may be."""
    folder = tmp_path / ("sweep" * 30)
    for seq, status in (
        (16, Status.OK),
        (32, Status.OK),
        (64, Status.UNSUPPORTED),
        (128, Status.FAILED),
    ):
        case = make_case(seq=seq, model="m" * 200)
        records.write(make_record(case, status=status, sweep_id=folder.name), folder)
    return folder


def log_all(sweep: Path, mode: str, listener: Listener) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "WANDB_BASE_URL": f"http://127.0.0.1:{listener.port}",
        "WANDB_API_KEY": "0" * 40,
        "HOME": str(sweep.parent),
    }
    for name in ("WANDB_MODE", "WANDB_SWEEP_ID", "WANDB_RUN_ID"):
        environment.pop(name, None)
    command = [sys.executable, "-W", "ignore", "-c", LOG_ALL, str(sweep), mode]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=150, check=False
    )


def read_back(sweep: Path) -> list[dict[str, Any]]:
    """Every run of the sweep, as ``wandb leet inspect`` tells it, with the group of its log."""
    wandb = Path(sys.executable).parent / "wandb"
    runs = []
    for folder in sorted((sweep / "wandb").glob("offline-run-*")):
        inspect = [str(wandb), "leet", "inspect", "--json"]
        summary = subprocess.run(
            [*inspect, "--summary", str(folder)], capture_output=True, text=True, check=True
        )
        lines = subprocess.run([*inspect, str(folder)], capture_output=True, text=True, check=True)
        runs.append(json.loads(summary.stdout) | {"log": lines.stdout})
    return runs


def test_a_kept_trace_is_a_profile_artifact(
    sweep: Path, listener: Listener, make_record: Callable[..., Record], make_case: Callable[..., Case]
) -> None:
    record = make_record(make_case(seq=48), sweep_id=sweep.name)
    kept = profile("flash").model_copy(update={"trace_file": "forward.pt.trace.json.gz"})
    changes = {"outcome": record.outcome.model_copy(update={"profile": kept})}
    path = records.write(record.model_copy(update=changes), sweep)
    path.with_name("forward.pt.trace.json.gz").write_bytes(b"trace")
    done = log_all(sweep, "offline", listener)
    assert done.stderr == ""
    logs = "".join(run["log"] for run in read_back(sweep))
    assert f"trace-{record.key}" in logs


def test_n_cases_are_n_runs_and_a_report_without_any_connection(sweep: Path, listener: Listener) -> None:
    done = log_all(sweep, "offline", listener)
    assert done.stderr == ""
    assert listener.connections == 0
    runs = read_back(sweep)
    assert len({run["run_id"] for run in runs}) == len(runs) == 5
    cases = {run["config"]["seq"]: run for run in runs if "seq" in run["config"]}
    assert {seq: (run["state"], run["summary"]["status"]) for seq, run in cases.items()} == {
        16: ("finished", "ok"),
        32: ("finished", "ok"),
        64: ("finished", "unsupported"),
        128: ("failed", "failed"),
    }
    for seq, run in cases.items():
        assert run["config"]["timing"]["min_samples"] == 6
        assert run["config"]["sweep_id"] == sweep.name
        assert ("latency_ms" in run["summary"]) is (seq < 64)
        assert len(run["name"]) <= 128
        assert f'"{sweep.name[:128]}"' in run["log"], "the group"
        assert '"profile"' in run["log"], "the job type"
    (report,) = [run for run in runs if "seq" not in run["config"]]
    assert report["state"] == "finished"
    tables = list((sweep / "wandb").glob("offline-run-*/files/media/table/results*.table.json"))
    table = json.loads(tables[0].read_text())
    assert len(table["data"]) == 4
    assert table["data"][3][table["columns"].index("latency_ms")] is None
    assert list((sweep / "wandb").glob("offline-run-*/files/media/images/figures/latency*.png"))


def test_nothing_is_kept_in_the_home_folder(sweep: Path, listener: Listener) -> None:
    log_all(sweep, "offline", listener)
    outside = [path for path in sweep.parent.rglob("*wandb*") if not path.is_relative_to(sweep)]
    assert outside == []


def test_a_service_that_hangs_up_is_met_once_and_costs_no_result(
    sweep: Path, listener: Listener
) -> None:
    start = time.monotonic()
    done = log_all(sweep, "online", listener)
    assert time.monotonic() - start < 60
    assert listener.connections > 0
    assert done.stderr.count("W&B is out of reach") == 1
    assert f"wandb sync {sweep}/wandb/offline-run-*" in done.stderr
    assert len(read_back(sweep)) == 5
    assert (sweep / "report.html").is_file()
