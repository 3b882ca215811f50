"""The picture of docs/turns.md: one group of a run as the live panel shows it, taken in a browser.

``python -m tools.turns_picture guess --step 1 --group 6``
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from workbench.run.directory import open_run
from workbench.run.rollouts import read_batches
from workbench.views.groups import group_html, group_of

STYLE = (
    "body { font: 14px sans-serif; margin: 0; padding: 12px; width: max-content; }"
    " pre, code { font: 12.5px monospace; } table { font-size: 13px; }"
)


def draw(run: str, step: int, group: int, out: Path) -> None:
    """Write a group (counted from 0) of a run's step as a PNG file."""
    [batch] = [each for each in read_batches(open_run(run)) if each.step == step]
    page = f"<meta charset='utf-8'><style>{STYLE}</style>{group_html(group_of(batch, group))}"
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(device_scale_factor=1.5, viewport={"width": 1010, "height": 600})
        tab.set_content(page)
        taken = tab.locator("body").screenshot()
        browser.close()
    few_colours = Image.open(io.BytesIO(taken)).convert("RGB").quantize(64)
    few_colours.save(out, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/images/turns.png"))
    asked = parser.parse_args()
    draw(asked.run, asked.step, asked.group, asked.out)
