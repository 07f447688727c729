"""``flbench status --html``: what the page has, and that a browser follows it while a sweep runs."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import StoreUnusable, UserError
from flbench.planning import write_plan
from flbench.store import Attempt, Store
from flbench.sweeps import Sweep, load_sweep
from tests.browser import Browser, needs_browser
from tests.report.stores import claim, fail, finish
from tests.report.test_charts import embedded
from tests.warm import warm_python

SPEC = """version: 1
name: toy
base: {rounds: 20, eval_every: 5}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1]
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep in a store whose path has characters that links must escape."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "my #store"))
    Path("toy.yaml").write_text(SPEC)
    return load_sweep("toy.yaml")


@pytest.fixture
def running(sweep: Sweep) -> Attempt:
    """A run that has reached round 10; one before it is done, one has failed, the others wait."""
    store = Store(Path("my #store"))
    write_plan(store, sweep)
    done, failed, running, *_ = sweep.experiments
    finish(store, done, 0.75)
    fail(store, failed, "oom")
    attempt = claim(store, running)
    attempt.log("starts\n")
    for at in (0, 5, 10):
        attempt.record({"round": at, "acc": 0.05 * at})
    return attempt


def status(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["status", *arguments])


def while_it_waits(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    clock = SimpleNamespace(sleep=lambda _: do(), monotonic=lambda: 0.0)
    monkeypatch.setattr("flbench.cli.status.time", clock)


def test_the_page_has_the_status_and_the_charts(running: Attempt) -> None:
    store = Store(Path("my #store"))
    for run_id in store.run_ids():
        if store.run(run_id).results():
            (store.run(run_id).attempts()[0].path / "log.txt").write_text("resumed\n")
    result = status("toy", "--html", "pages/live.html")
    assert result.exit_code == 0 and result.stdout.endswith(f"page: {Path('pages/live.html').resolve().as_uri()}\n")
    page = Path("pages/live.html").read_text()
    assert "data-period" not in page.partition("<script")[0], "it is written once"
    assert any("10/20" in row and "50.0 %" in row for row in re.findall("<tr>(.*?)</tr>", page))
    links = re.findall(r'<a href="([^"#]+)"', page)
    logs = [(Path("pages") / unquote(unescape(link))).read_text() for link in links]
    assert ["starts" in log or "resumed" in log for log in logs] == [True, True], "the failed run wrote no log"
    (group,) = embedded(page)["groups"]
    assert [axis["name"] for axis in group["axes"]] == ["norm", "lr"]
    assert [cell["mean"] for cell in group["cells"]][:2] == [[18.75, 37.5, 56.25, 75.0], [0.0, 25.0, 50.0]]
    finished = page.rpartition("Logs of finished runs")[2].partition("<h2")[0]
    assert re.search('<th scope="row">fedavg none lr=0.01 s0</th>.*<td>done</td>', finished), finished


def test_ctrl_c_ends_the_page_with_the_command(running: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def interrupt() -> None:
        seen.append(Path("live.html").read_text())
        raise KeyboardInterrupt

    while_it_waits(monkeypatch, interrupt)
    assert status("toy", "--html", "live.html", "--watch").exit_code == 130
    assert 'data-period="5.0"' in seen[0]
    assert Path("live.html").read_text() == seen[0].replace(' data-period="5.0"', "")


def test_the_last_page_of_a_watched_sweep_has_all_results(
    sweep: Sweep, running: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        (running.path / "exit.json").write_text('{"kind": "interrupted"}')
        store = Store(Path("my #store"))
        for request in sweep.experiments[2:]:
            finish(store, request, 0.5)

    while_it_waits(monkeypatch, end)
    assert status("toy", "--html", "live.html", "--watch").exit_code == 0
    page = Path("live.html").read_text()
    assert "data-period" not in page.partition("<script")[0] and "No run is running." in page
    assert [cell["value"] for cell in embedded(page)["groups"][0]["cells"]] == [75.0, 50.0, 50.0, 50.0]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"n\xe1me: toy")])
def test_a_plan_without_its_sweep_has_no_charts(
    sweep: Sweep, running: Attempt, damage: Callable[[Path], object]
) -> None:
    damage(Path("my #store/sweeps/toy") / sweep.spec_hash / "spec.yaml")
    assert status("toy", "--html", "live.html").exit_code == 0
    page = Path("live.html").read_text()
    assert f"No charts of toy/{sweep.spec_hash}" in page and embedded(page)["groups"] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("live.txt", "--html live.txt: expected a name that ends in .html or .htm"),
        ("mine.html", "mine.html is no report, and this one is on Status of toy: name another file"),
        ("folder.html", "cannot write .*folder.html"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(running: Attempt, name: str, says: str) -> None:
    Path("mine.html").write_text("<p>mine</p>")
    Path("folder.html").mkdir()
    error = status("toy", "--html", name).exception
    assert isinstance(error, UserError) and re.match(says, str(error))
    assert Path("mine.html").read_text() == "<p>mine</p>"
    assert isinstance(status("--store", "none", "--html", "live.html").exception, StoreUnusable)
    assert not Path("live.html").exists()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_a_browser_follows_the_runs(running: Attempt, tmp_path: Path, width: int, dark: bool) -> None:
    """It shows a new round without a click, and keeps the position, the choice of cells and the order of tables."""
    command = ["-c", "from flbench.cli import main; main()", "status", "toy", "--html", "live.html", "--watch"]
    process = subprocess.Popen([warm_python(), *command], stdout=subprocess.DEVNULL)
    tick = "document.querySelector('[data-key=\"tick lr 0.1\"]')"
    curve = "document.querySelector('#charts-area [role=img] .chosen .mean')?.getAttribute('d')"
    top = "Math.round([...document.querySelectorAll('h3')].at(-1).getBoundingClientRect().top)"
    place = f"[{top}, document.querySelector('[aria-live]').innerText, document.activeElement.dataset.key]"
    note = "document.querySelector('#page-updated')?.innerText"
    try:
        while not Path("live.html").exists() and process.poll() is None:
            time.sleep(0.1)
        with Browser(tmp_path / "live.html", tmp_path / "profile", width=width, dark=dark) as browser:
            paper = browser.value("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
            assert browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            browser.value("document.querySelector('th button').click()")
            browser.value(f"{tick}.focus()")
            browser.press("Enter")
            browser.value("document.querySelector('.list button').click()")
            browser.value("scrollTo(0, 500)")
            before = browser.value(place)
            assert before[1:] == ["2 of 4 cells show all", "tick lr 0.1"]
            drawn = browser.value(curve)
            running.record({"round": 15, "acc": 0.9})
            browser.wait_for(f"{note} && {curve} && {curve} !== {drawn!r}")
            assert browser.value(curve).count("L") == drawn.count("L") + 1
            assert browser.value(place) == before
            assert browser.value("document.querySelector('th').ariaSort") == "ascending"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
            browser.wait_for(f"{note}?.endsWith('this page is not written any more.')")
            assert browser.complaints == []
    finally:
        process.kill()
        process.wait()
