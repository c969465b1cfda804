"""The page: self-contained, escaped, sortable in a real browser."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscale import record as records
from attnscale.case import Case
from attnscale.record import Record, Status
from attnscale.report.build import ReportError, build_report
from tests.evidence.profiles import profile

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]
CHROMIUM = shutil.which("chromium")
HOSTILE = '<script>alert("x")</script> & "quoted" $\\frac$ \' </td>'


def build(folder: Path, *made: Record) -> str:
    for record in made:
        records.write(record, folder)
    return build_report(folder).page.read_text()


def test_the_folder_holds_all_that_the_report_is(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "stale.png").write_text("of an earlier build")
    page = build(tmp_path, make_record(), make_record(make_case(seq=32)))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "cases",
        "figures",
        "noise.json",
        "report.html",
        "results.csv",
        "results.parquet",
        "kernels.csv",
    }
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {
        f"{what}_by_seq.{end}" for what in ("latency", "tokens") for end in ("png", "svg")
    }
    assert page.count("<figure") == 2


def test_nothing_is_fetched(make_record: MakeRecord, tmp_path: Path) -> None:
    page = build(tmp_path, make_record())
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", page)
    assert "default-src 'none'" in page


def test_hostile_texts_stay_texts(make_record: MakeRecord, make_case: MakeCase, tmp_path: Path) -> None:
    page = build(
        tmp_path,
        make_record(make_case(model=HOSTILE, seq=32)),
        make_record(make_case(model=HOSTILE), status=Status.FAILED, reason=HOSTILE, traceback=HOSTILE),
    )
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") >= 3


def test_what_failed_is_named_with_its_reason(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    damaged = records.write(make_record(make_case(seq=64)), tmp_path)
    damaged.write_text("{")
    page = build(
        tmp_path,
        make_record(),
        make_record(make_case(seq=32), status=Status.OOM, reason="tried to allocate 2 GiB"),
    )
    assert "tried to allocate 2 GiB" in page
    assert damaged.parent.name in page
    assert "peak_allocated_bytes</code>: device is cpu" in page


def test_what_the_kernels_say_is_on_the_page(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    case = make_case(backend="naive", device="cuda", dtype="bfloat16", seq=1024, head_dim=64)
    record = make_record(case, device_ms=1.9, host_ms=0.5)
    ran = {"profile": profile("naive"), "backend_ran": "naive"}
    page = build(tmp_path, record.model_copy(update={"outcome": record.outcome.model_copy(update=ran)}))
    assert '<h3 id="hidden-Memcpy">hidden Memcpy</h3>' in page
    assert "gains at most 0.024 ms a forward" in page
    assert "Memcpy DtoD (Device -&gt; Device)" in page
    assert "masked_fill_kernel" in (tmp_path / "kernels.csv").read_text()


def test_cases_of_two_environments_are_said_to_be(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    other = make_record().environment.model_copy(update={"torch": "2.11.0+cu130"})
    page = build(tmp_path, make_record(), make_record(make_case(seq=32), environment=other))
    assert "2 different environments" in page
    assert "2.11.0+cu130" in page


def test_all_failed_is_still_a_page(make_record: MakeRecord, tmp_path: Path) -> None:
    page = build(tmp_path, make_record(status=Status.FAILED))
    assert "no case ended ok" in page
    assert "No case has a number to draw" in page


@pytest.mark.parametrize("what", ["missing", "empty", "damaged"])
def test_a_folder_without_records_is_one_line(
    make_record: MakeRecord, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "sweep"
    if what != "missing":
        folder.mkdir()
    if what == "damaged":
        records.write(make_record(), folder).write_text("{")
    with pytest.raises(ReportError) as caught:
        build_report(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_the_answer_calls_a_tie_a_tie_and_names_what_was_not_compared(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    times = {"flash": 2.0, "cudnn": 2.05, "math": 5.0}
    made = [make_record(make_case(backend=name), latency_ms=ms) for name, ms in times.items()]
    made.append(make_record(make_case(backend="naive"), status=Status.OOM))
    page = build(tmp_path, *made)
    assert "no difference seen between flash, cudnn" in page
    assert "math, 2.50 times as long" in page
    assert "naive (oom)" in page


def test_columns_that_are_null_everywhere_are_left_out(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    cases = [make_case(causal=causal, seq=4096) for causal in (True, False)]
    page = build(tmp_path, *(make_record(case) for case in cases))
    assert "peak allocated (GiB)" not in page
    assert ">causal</button>" in page
    assert 'data-value="True"' in page


def test_every_figure_says_in_words_what_it_shows(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    page = build(
        tmp_path,
        make_record(),
        make_record(make_case(seq=32)),
        make_record(make_case(seq=64), status="oom"),
    )
    alts = re.findall(r'<img src="data:[^"]+" alt="([^"]+)"', page)
    assert len(alts) == 2
    assert all("by seq on Test CPU" in alt and "1 oom (naive 1)" in alt for alt in alts)


def test_a_folder_that_can_not_be_written_is_one_line(make_record: MakeRecord, tmp_path: Path) -> None:
    records.write(make_record(), tmp_path)
    (tmp_path / "figures").write_text("a file where the folder should be")
    with pytest.raises(ReportError, match="figures: can't be written"):
        build_report(tmp_path)


def test_a_build_that_dies_leaves_the_earlier_page_whole(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnscale.report import page as page_module

    before = build(tmp_path, make_record())

    def die(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(page_module, "render", die)
    with pytest.raises(KeyboardInterrupt):
        build_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == before


PROBE = """<script>
  const errors = [];
  window.addEventListener("error", event => errors.push(event.message));
  document.addEventListener("securitypolicyviolation", event => errors.push(event.blockedURI));
  const headers = [...document.querySelectorAll("#cases th")];
  const header = headers.find(th => th.textContent.startsWith("latency"));
  const rows = () => [...document.querySelectorAll("#cases tbody tr")];
  const read = () => rows().map(row => row.cells[headers.indexOf(header)].textContent);
  const orders = [];
  for (let turn = 0; turn < 2; turn++) {
    header.querySelector("button").click();
    orders.push(header.getAttribute("aria-sort") + " " + read().join(" "));
  }
  const sorted = headers.filter(th => th.getAttribute("aria-sort") !== "none").length;
  window.addEventListener("load", () => {
    const loaded = [...document.images].every(image => image.naturalWidth > 0);
    const fetched = performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:"));
    document.title = [...orders, `sorted ${sorted}`, `loaded ${loaded}`,
      `fetched ${fetched.length}`, `errors ${errors}`].join(" | ");
  });
</script>"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_sorting_in_a_browser(make_record: MakeRecord, make_case: MakeCase, tmp_path: Path) -> None:
    """Numbers by value, nulls last in both directions, and no error or request on the way."""
    times = {16: 12.0, 32: 9.0, 64: 101.0}
    made = [make_record(make_case(seq=seq, model=HOSTILE), latency_ms=ms) for seq, ms in times.items()]
    made.append(make_record(make_case(seq=128, model=HOSTILE), status=Status.OOM, reason=HOSTILE))
    page = build(tmp_path, *made)
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", f"{PROBE}</body>"))
    title = re.search(r"<title>(.*?)</title>", dump_dom(probed, tmp_path))
    assert title is not None
    assert title.group(1).split(" | ") == [
        "ascending 9 12 101 -",
        "descending 101 12 9 -",
        "sorted 1",
        "loaded true",
        "fetched 0",
        "errors ",
    ]


def dump_dom(page: Path, scratch: Path) -> str:
    assert CHROMIUM is not None
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    command = [CHROMIUM, *quiet, f"--user-data-dir={scratch / 'profile'}", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
