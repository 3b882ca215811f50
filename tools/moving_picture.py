"""The moving picture of the README: a run's live figure, step by step, made again from its files,
and at the end what `workbench eval` (or notebook 04) measured.

``python -m tools.moving_picture runs/demo``
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from workbench.inspection.measured import gain_in_words
from workbench.run.directory import RunDirectory, open_run
from workbench.views.run_view import GAP, RunView

COLOURS = 96


def frame(run: RunDirectory, step: int, heading: str = "") -> Image.Image:
    """The figure as the panel showed it after this step, under its status line or `heading`."""
    view = RunView()
    view.begin(run)
    for row in run.metrics():
        if row["step"] <= step:
            view.row(row["step"], row)
    for event in run.events():
        if event.get("step", 0) <= step and event["event"] != "finished":
            view.event(event)
    picture, _ = view.picture(heading or view.words(None))
    return Image.open(io.BytesIO(picture)).convert("RGB")


def write(run: RunDirectory, every: int, frame_s: float, last_s: float, out: Path) -> None:
    """Write the GIF: a frame of `every` steps, then the verdict."""
    last = max(row["step"] for row in run.metrics())
    steps = [*range(min(every, last), last, every), last]
    frames = [frame(run, step) for step in steps]
    measured = run.read_json("evaluation.json")
    before, after = (f"{measured[when]['correct']:.0%}" for when in ("before", "after"))
    words = f"{before} -> {after} correct; {gain_in_words(measured)}"
    verdict = f"{measured['verdict']['word']}: {measured['verdict']['why']}"
    frames.append(frame(run, last, f"{words}{GAP}{verdict}"))
    # One palette for all of them, so that nothing flickers.
    palette = frames[-1].quantize(COLOURS, method=Image.Quantize.FASTOCTREE)
    first, *others = (each.quantize(palette=palette, dither=Image.Dither.NONE) for each in frames)
    times = [1000 * frame_s] * (len(frames) - 2) + [1000 * last_s] * 2
    first.save(out, save_all=True, append_images=others, duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--every", type=int, default=3, help="steps from one frame to the next")
    parser.add_argument("--frame-s", type=float, default=0.35)
    parser.add_argument("--last-s", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path("docs/images/run.gif"))
    asked = parser.parse_args()
    write(open_run(asked.run), asked.every, asked.frame_s, asked.last_s, asked.out)
