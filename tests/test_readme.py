"""The README is short and true: what every page has to be is in test_docs.py."""

from __future__ import annotations

from pathlib import Path

import test_docs

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
    from PIL import Image

    file = test_docs.DOCS / "images" / "run.gif"
    assert f"]({file.relative_to(README.parent)})" in TEXT
    assert file.stat().st_size < 600_000
    with Image.open(file) as picture:
        assert picture.n_frames > 8
