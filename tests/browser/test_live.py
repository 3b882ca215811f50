"""Notebook 03 in JupyterLab in a real browser: it runs, and its figure grows while it does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from workbench.demo import notebooks_folder, with_parameters
from workbench.doctor import find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no chromium on this machine (apt-get install chromium)"
)
# Drawing may take 2 % of the time, so a figure that is to be seen growing needs a run of some length.
STEPS = 20
SETTINGS = {
    # Windowed, a notebook takes cells out of the page while they are scrolled away, and with them the figure.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@pytest.fixture
def lab(home):
    """(address, folder) of a JupyterLab on a copy of the notebooks, with the task that 01 and 02 leave."""
    import nbformat

    folder = home / "notebooks"
    folder.mkdir()
    source = nbformat.read(notebooks_folder() / "03_train.ipynb", as_version=4)
    nbformat.write(
        with_parameters(source, {"max_steps": STEPS, "run_name": "browser", "per_device_train_batch_size": 32}, "03"),
        folder / "03_train.ipynb",
    )
    task = home / "tasks" / "arithmetic" / "task.py"
    task.parent.mkdir(parents=True)
    task.write_text("from workbench.tiny.task import task as arithmetic\ntask = arithmetic(200, 20)\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for extension, settings in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{extension}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
    }
    log = (home / "lab.log").open("w")
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1",
            f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
        ],
        env=environment, stdout=log, stderr=log,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab did not start: {(home / 'lab.log').read_text()[-2000:]}")
        yield address, home
    finally:
        server.terminate()
        server.wait(timeout=20)
        log.close()


def test_the_figure_grows_while_the_cell_runs(lab):
    assert CHROMIUM is not None, "CI installs chromium before the tests"
    from playwright.sync_api import sync_playwright

    address, home = lab
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                  "--disable-component-update", "--disable-sync"],
        )  # fmt: skip
        page = browser.new_page(viewport={"width": 1300, "height": 1400})
        page.goto(f"{address}/lab/tree/03_train.ipynb?reset", wait_until="domcontentloaded")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        _run_all(page)
        pictures = _watch(page, home)
        page.screenshot(path=str(home / "after.png"))
        browser.close()
    if shots := os.environ.get("WORKBENCH_SCREENSHOTS"):
        for shot in home.glob("*.png"):
            shutil.copy(shot, shots)
    assert len(pictures) >= 2, f"the figure changed {len(pictures)} times while {STEPS} steps ran"


def _run_all(page) -> None:
    """Start all cells."""
    for _ in range(5):
        # "Run all" right after loading is sometimes swallowed, so it is asked for until a cell is marked as running.
        page.keyboard.press("Escape")
        page.get_by_role("menuitem", name="Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).click()
        try:
            page.wait_for_function(
                "() => [...document.querySelectorAll('.jp-InputPrompt')].some(p => /\\[(\\*|\\d+)\\]/.test(p.textContent))",
                timeout=15_000,
            )
            return
        except Exception:
            page.wait_for_timeout(1000)
    pytest.fail("the notebook did not start to run")


def _watch(page, home) -> list[str]:
    """The different pictures that the figure showed, until training says that it is finished."""
    seen: list[str] = []
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        source = page.evaluate(
            "() => { const i = [...document.querySelectorAll('.jp-RenderedImage img')].pop();"
            " if (i) i.scrollIntoView({block: 'center'}); return i ? i.src : null; }"
        )
        if source and source not in seen:
            seen.append(source)
            page.screenshot(path=str(home / f"figure-{len(seen)}.png"))
        if page.evaluate("() => /finished after \\d+ steps in/.test(document.body.innerText)"):
            return seen
        page.wait_for_timeout(300)
    pytest.fail(f"training did not finish; {len(seen)} pictures were seen")
