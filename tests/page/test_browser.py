"""The page in a real browser, with a real run: it shows the run, kills a worker, and shows that the run survived."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)

PATIENCE_MS = 120_000.0

TRAIN = """
import time
import numpy as np
import holdfast

state = holdfast.NumpyState(weights=np.zeros(4))
with holdfast.elastic(state) as run:
    for step in run.steps(samples=96, batch=96, micro_batch=8, epochs=1_000_000):
        with step:
            time.sleep(0.02)
            for micro in step.micro_batches:
                step.add(np.ones(4))
            state.weights += step.total()
            print("step", step.number, flush=True)
"""


#: A log that is longer than its window, and whose newest line is in view.
AT_ITS_END = """() => {
    const log = document.querySelector("#logs pre");
    return log && log.scrollHeight > log.clientHeight && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
}"""


@pytest.fixture
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_a_run_is_seen_a_worker_killed_and_the_run_survives(
    browser: Any, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    options = ("--nproc-per-node", "2", "--max-restarts", "2", "--redirects", "3", "--rdzv-id", "seen")
    launch = start("launch", *options, str(script))
    serve = start("page", "--allow-kill")
    assert serve.stdout is not None
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda told: troubles.append(told.text) if told.type == "error" else None)

    page.goto(serve.stdout.readline().strip())
    page.click('tr[data-run="seen"] a')
    page.wait_for_selector('tr[data-rank="1"] button.kill')
    killed = page.inner_text('tr[data-rank="1"] td:nth-child(3)')
    page.click('tr[data-rank="1"] button.kill')
    page.wait_for_selector("text=replaced rank 1, the others go on")
    page.wait_for_function(f"document.querySelector('tr[data-rank=\"1\"] td:nth-child(3)')?.textContent !== '{killed}'")
    page.wait_for_selector("svg rect.stepping")
    page.click("text=Take stacks now")
    page.wait_for_selector("#stacks pre:has-text('train.py')")
    page.select_option("#logs select", index=1)
    page.wait_for_function(AT_ITS_END)
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    other = browser.new_context().new_page()
    other.goto(page.url.split("#")[0])
    assert "open the link" in other.inner_text("body")

    assert troubles == []
    for process in (launch, serve):
        process.terminate()
        process.communicate()


class Lines:
    """The lines that a process writes, waited for with a bound."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=lambda: [self._lines.put(line) for line in stream], daemon=True).start()

    def wait(self, text: str) -> str:
        """Return the next line with this text."""
        while text not in (line := self._lines.get(timeout=PATIENCE_MS / 1000)):
            pass
        return line


def test_the_demo_survives_what_a_person_kills_on_its_page(
    browser: Any, start: Callable[..., subprocess.Popen[str]]
) -> None:
    demo = start("demo", "--page", "--steps", "100000", "--step-time", "0.02")
    assert demo.stdout is not None
    lines = Lines(demo.stdout)
    link = next(word for word in lines.wait("http://").split() if word.startswith("http://"))
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()

    page.goto(link)
    page.click('tr[data-run="demo"] a')
    page.wait_for_selector('tr[data-rank="3"] button.kill')
    page.click('tr[data-rank="3"] button.kill')
    assert "SIGKILL" in lines.wait(" broke: ")
    page.click("button[data-agent]:has-text('ranks 2, 3')")
    assert lines.wait("was killed from outside; starting a new one")
    page.wait_for_selector('tr[data-rank="3"] button.kill')
    demo.terminate()
    demo.wait()
