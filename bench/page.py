"""Takes the pictures of `holdfast page` for the docs: a run whose worker was killed, light and dark, wide and narrow.

python -m bench.page            needs playwright and a Chromium on the PATH
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.top import SCRIPT

IMAGES = Path(__file__).parent.parent / "docs" / "images"
RUN = "train-x7k2m"
OPTIONS = ("--nproc-per-node", "4", "--max-restarts", "3", "--tee", "3", "--rdzv-id", RUN)
#: Name, width and colours of each picture.
PICTURES = (("page", 1200, "light"), ("page-dark", 1200, "dark"), ("page-narrow", 420, "light"))
PATIENCE_MS = 120_000.0


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_HOME"] = folder
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        holdfast = [sys.executable, "-m", "holdfast"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        launch = subprocess.Popen([*holdfast, "launch", *OPTIONS, "--log-dir", folder, str(script)], **quiet)
        serve = subprocess.Popen([*holdfast, "page", "--allow-kill"], stdout=subprocess.PIPE, text=True)
        try:
            assert serve.stdout is not None
            take(serve.stdout.readline().strip(), chromium)
        finally:
            for process in (launch, serve):
                process.terminate()
                process.wait()


def take(link: str, chromium: str) -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(link)
        page.click(f'tr[data-run="{RUN}"] a')
        page.wait_for_selector('tr[data-rank="2"] button.kill')
        page.wait_for_timeout(8000)  # a run of some age looks like one
        page.click('tr[data-rank="2"] button.kill')
        page.wait_for_selector("text=replaced rank 2")
        page.wait_for_timeout(6000)
        page.click("text=Take stacks now")
        page.wait_for_selector("#stacks pre")
        page.evaluate("scrollTo(0, 0)")
        for name, width, colours in PICTURES:
            page.emulate_media(color_scheme=colours)
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_timeout(1500)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
