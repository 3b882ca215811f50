"""The look of figures and pages by numbers: contrast on light and dark grounds, distances of colours for every colour vision,
and that there is one place for all of it.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from workbench.views import look

VIEWS = Path(look.__file__).parent
GROUNDS = {  # of a program: ground, and the colour of its words
    "JupyterLab light": ("#ffffff", "#000000"),
    "its striped rows": ("#f5f5f5", "#212121"),
    "JupyterLab dark": ("#111111", "#ffffff"),
    "its rows": ("#212121", "#ffffff"),
    "VS Code dark": ("#1e1e1e", "#cccccc"),
    "Colab dark": ("#383838", "#d5d5d5"),
    "the report, dark": ("#121212", "#ffffff"),
}
DARK = {name: ground for name, (ground, _) in GROUNDS.items() if "light" not in name and ground != "#f5f5f5"}
# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB
VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
# CSS filter effects: hue-rotate(180deg)
HUE = np.array([[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]])


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255


def linear(colour: np.ndarray) -> np.ndarray:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """The ratio of WCAG 2."""
    dark, light = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (one, other))
    return light / dark


def turned(colour: str, ground: str) -> np.ndarray:
    """A colour of a picture on a dark page, as `look` has it turned there."""
    assert look._DARK == "filter:invert(1) hue-rotate(180deg);mix-blend-mode:screen"
    seen = np.clip(HUE @ (1 - rgb(colour)), 0, 1)
    return 1 - (1 - seen) * (1 - rgb(ground))


def lab(colour: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB (D65)."""
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    of_white = matrix @ np.clip(colour, 0, 1) / matrix.sum(axis=1)
    f = np.where(of_white > 0.008856, np.cbrt(of_white), 7.787 * of_white + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("name", [name for name in look.COLOURS if name != "pale"])
def test_lines_stand_out_on_white_and_turned_dark(name):
    colour = look.COLOURS[name]
    least = 4.5 if name in ("ink", "grey", "violet") else 3.0  # these three write words
    assert contrast(rgb(colour), rgb("#ffffff")) >= least
    for program, ground in DARK.items():
        assert contrast(turned(colour, ground), rgb(ground)) >= least, program


@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_series_are_alike_to_any_reader(vision):
    for light in (True, False):
        seen = [lab(VISIONS[vision] @ linear(rgb(each) if light else turned(each, "#1e1e1e"))) for each in look.SERIES]
        nearest = min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2))
        assert nearest >= 20, "CIE76; Okabe and Ito's six have 12 turned dark"


@pytest.mark.parametrize("word", ["GOOD", "BAD", "WARNING", "MORE", "LESS", "MUTED"])
@pytest.mark.parametrize("program", GROUNDS)
def test_words_can_be_read_on_every_ground(word, program):
    ground, words = map(rgb, GROUNDS[program])
    mix = re.fullmatch(r"color-mix\(in srgb, (\S+) (\d+)%, (\S+)\)", getattr(look, word))
    first, share, second = mix[1], int(mix[2]) / 100, mix[3]
    colours = {"currentcolor": words, "transparent": ground}
    one, other = (colours[each] if each in colours else rgb(each) for each in (first, second))
    assert contrast(share * one + (1 - share) * other, ground) >= 4.5


def test_the_words_of_an_alarm_can_be_read_on_its_band():
    assert contrast(rgb(look.PAPER), rgb(look.RED)) >= 4.5
    assert contrast(rgb(look.PAPER), rgb(look.GREY)) >= 4.5
    for ground in DARK.values():
        assert contrast(turned(look.PAPER, ground), turned(look.RED, ground)) >= 4.5


def test_every_colour_of_the_views_comes_from_one_place():
    files = [*VIEWS.glob("*.py"), *VIEWS.glob("*.yaml"), *VIEWS.glob("*.mplstyle"), VIEWS.parent / "commands" / "reporting.py"]
    named = r"[\"'](?:white|black|red|green|blue|orange|grey|gray)[\"']|\bcolor:\s*(?:white|black|red|green|blue|gr[ae]y)\b"
    for file in files:
        if file.name != "look.py":
            found = re.findall(rf"#[0-9a-fA-F]{{3,8}}\b|\b(?:rgb|hsl)a?\(|{named}", file.read_text(encoding="utf-8"))
            assert not found, file.name
    assert len(files) > 20


def test_settings_name_colours_of_the_palette(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("line: {color: $blue}\n")
    assert look.settings(file) == {"line": {"color": look.BLUE}}
    file.write_text("line: {color: $mauve}\n")
    with pytest.raises(KeyError):
        look.settings(file)
