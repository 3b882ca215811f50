"""A JupyterLab and a browser, both real."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request

import pytest
from driving import LONG_MS, Server, waited_for

SETTINGS = {
    # Windowed, a notebook takes cells out of the page while they are scrolled away, and with them the figure.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def jupyterlab(home):
    """A JupyterLab that serves the (empty) folder `notebooks` of a workspace of its own."""
    if (chromium := find_chromium()) is None and os.environ.get("CI") != "true":
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    assert chromium is not None, "CI installs chromium before the tests"
    folder = home / "notebooks"
    folder.mkdir()
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
        waited_for(lambda: server.poll() is not None or answers(f"{address}/api/status"))
        assert server.poll() is None, f"JupyterLab did not start: {(home / 'lab.log').read_text()[-2000:]}"
        yield Server(address, folder, home)
    finally:
        server.terminate()
        server.wait(timeout=300)
        log.close()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10):
            return True
    except OSError:
        return False


@pytest.fixture
def page():
    """A page of a headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                  "--disable-component-update", "--disable-sync"],
        )  # fmt: skip
        opened = browser.new_page(viewport={"width": 1300, "height": 1400})
        opened.set_default_timeout(LONG_MS)
        yield opened
        browser.close()
