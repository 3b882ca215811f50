"""Driving a notebook in a browser. The server and the page are fixtures in browser/conftest.py."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LONG_MS = 300_000  # a page's patience: for what never comes, not for what a busy machine holds up


# JavaScript: whether the page has called its kernel idle for two seconds.
_IDLE = """() => {
    const shown = document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status;
    window.idleSince = shown === "idle" ? (window.idleSince ?? performance.now()) : null;
    return window.idleSince !== null && performance.now() - window.idleSince > 2000;
}"""


class Server(NamedTuple):
    """A running JupyterLab: its address, the folder that it serves, and the workspace."""

    address: str
    folder: Path
    home: Path


def open_notebook(page, server: Server, name: str) -> None:
    """Open a notebook of the served folder and start all of its cells."""
    page.goto(f"{server.address}/lab/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    # While its kernel starts, a page asks which widgets it has. A cell that is busy before the answer holds that up, and with it
    # all widgets, until it ends; a person, too, waits for the kernel. The page calls it idle even before it is connected.
    waited_for(lambda: any(own["connections"] and own["execution_state"] == "idle" for own in _kernels(server)))
    page.wait_for_function(_IDLE)
    for _ in range(12):
        # "Run all" right after loading is sometimes swallowed, so it is asked for until a cell is marked as running; and
        # on a busy machine a dialog about a kernel or a server that is slow to answer comes in between. To accept what it
        # offers may start another kernel, so it is closed.
        try:
            page.keyboard.press("Escape")
            page.get_by_role("menuitem", name="Run", exact=True).first.click(timeout=15_000)
            page.get_by_text("Run All Cells", exact=True).click(timeout=15_000)
            page.wait_for_function(
                "() => [...document.querySelectorAll('.jp-InputPrompt')].some(p => /\\[(\\*|\\d+)\\]/.test(p.textContent))",
                timeout=15_000,
            )
            return
        except Exception:
            page.wait_for_timeout(1000)
    pytest.fail("the notebook did not start to run")


def _kernels(server: Server) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{server.address}/api/kernels", timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:  # the server lists a kernel before it can describe it
        return []


def keep_screenshots(home: Path) -> None:
    """Copy the pictures that a test took to the folder WORKBENCH_SCREENSHOTS, if one is named."""
    if shots := os.environ.get("WORKBENCH_SCREENSHOTS"):
        for shot in home.glob("*.png"):
            shutil.copy(shot, shots)


def waited_for(found: Callable[[], Any], seconds: float = 300) -> Any:
    """What `found()` returns once it is true. The limit is for what never comes: a busy machine takes its time."""
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
    return value


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that a run is writing; none if it is not there yet."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.is_file() else []
