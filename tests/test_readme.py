"""The README is short and true: what every page has to be is in test_docs.py."""

from __future__ import annotations

from pathlib import Path

import test_docs
from PIL import Image

from tools.moving_picture import write
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_it_is_read_in_one_go():
    assert len(TEXT) <= 9000


def test_nothing_is_left_to_fill_in():
    assert "@@" not in TEXT


def test_it_leads_to_every_page():
    reached = {(README.parent / target.partition("#")[0]).resolve() for target in test_docs.links(TEXT)}
    assert set(test_docs.DOCS.glob("*.md")) - reached == set()


def test_its_moving_picture_is_one_and_is_small():
    file = test_docs.DOCS / "images" / "run.gif"
    assert f"]({file.relative_to(README.parent)})" in TEXT
    assert file.stat().st_size < 600_000
    with Image.open(file) as picture:
        assert picture.n_frames > 8


def test_its_moving_picture_is_made_from_a_run_and_ends_with_what_was_measured(home):
    run = RunDirectory.create("small", Recipe(), {})
    for step in range(1, 6):
        run.log_metrics(step, {"reward": 0.1 * step, "kl": 0.01})
    run.log_event("held_out", 0, correct=0.25, low=0.1, high=0.4)
    shares = {"correct": 0.25, "correct_lenient": 0.25}
    gain = {"correct": 0.5, "low": 0.4, "high": 0.6}
    verdict = {"word": "sharpened", "why": "base solves them all"}
    run.write_json("evaluation.json", {"before": shares, "after": dict.fromkeys(shares, 0.75), "gain": gain, "verdict": verdict})
    write(run, every=2, frame_s=0.2, last_s=1.0, out=home / "small.gif")
    with Image.open(home / "small.gif") as picture:
        durations = [picture.seek(each) or picture.info["duration"] for each in range(picture.n_frames)]
    assert durations == [200, 200, 1000, 1000]  # steps 2, 4 and 5, and the measurement
