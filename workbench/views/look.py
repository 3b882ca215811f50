"""The look of figures, tables, panels and reports, in one place: colours, sizes of type, and how
all of it turns dark.

No meaning rests on a colour alone: a word, a sign or a shape stands beside it.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

from workbench.recipe import packaged

# The hues of Okabe and Ito, moved until each has 3 : 1 on white and, turned dark, on every dark
# ground, and no two are alike to a reader with any colour vision. A test measures both.
SERIES = BLUE, ORANGE, GREEN, PURPLE, SKY, RED = (
    "#1D4F8C",
    "#C88700",
    "#1FA35C",
    "#B584B0",
    "#7D8CE0",
    "#B00010",  # last: it is that of alarms
)
ALARM, WELL = "▲", "✓"  # before words, and on curves
INK, GREY, PALE, RULE, PAPER = "#222222", "#6B6B6B", "#CCCCCC", "#DDDDDD", "#FFFFFF"
VIOLET = "#5B2A86"  # of held-out prompts: no function has it
COLOURS = {
    "blue": BLUE, "orange": ORANGE, "green": GREEN, "purple": PURPLE, "red": RED, "sky": SKY,
    "ink": INK, "grey": GREY, "pale": PALE, "violet": VIOLET,
}  # fmt: skip
TITLE, TEXT, SMALL = 9.5, 9, 8  # points; a figure is 900 pixels wide at 100 an inch


def mixed(colour: str) -> str:
    """A colour of words in HTML: half of it is that of the text around, so that it is dark on a
    light page and light on a dark one, whichever program shows it.
    """
    return f"color-mix(in srgb, {colour} 50%, currentcolor)"


GOOD, BAD, WARNING = mixed(GREEN), mixed("#FF3B47"), mixed(ORANGE)
MORE, LESS = mixed(SKY), mixed(ORANGE)  # than before, or than the others; no verdict
# no one grey reads well on white and on a dark theme's ground
MUTED = "color-mix(in srgb, currentcolor 72%, transparent)"
FAINT = "color-mix(in srgb, currentcolor 22%, transparent)"  # lines between rows
# beside what trains, and what does not: on white and on dark, and without colours
OWN_LINE, READ_LINE = f"3px solid {SKY}", f"3px dashed {MUTED}"
MARKED = f"background:#FFE08A;color:{INK}"  # found in a text
SHADES = (ORANGE, SKY)  # of tokens: likelier, less likely

# A picture is drawn on white. On a dark page it is turned dark with its hues kept, and its black
# ground lets the page's own through. A theme is the program's, whatever the system prefers.
_DARK = "filter:invert(1) hue-rotate(180deg);mix-blend-mode:screen"
DARK_PROGRAMS = (
    "[data-jp-theme-light=false] img.chart,body.vscode-dark img.chart,"
    f"body.vscode-high-contrast img.chart,html[theme=dark] img.chart{{{_DARK}}}"
)
REPORT = f""":root{{color-scheme:light dark;background:light-dark({PAPER},#121212)}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em}}
h1{{font-size:28px;line-height:1.25;margin:0 0 .6em}}
details{{border-top:1px solid {FAINT};padding:.7em 0}}
summary{{font-size:18px;font-weight:600;cursor:pointer}} details[open]>summary{{margin-bottom:.5em}}
table{{font-size:14px}} td,th{{border-bottom:1px solid {FAINT}}}
pre{{font-size:14px;overflow-wrap:anywhere}}
@media(prefers-color-scheme:dark){{img.chart{{{_DARK}}}}}"""


def settings(file: Path) -> Any:
    """A YAML file of settings, in which `$blue` is that colour."""
    named = {**COLOURS, "rule": RULE, "paper": PAPER}
    quoted = {name: f'"{colour}"' for name, colour in named.items()}
    return packaged(Template(file.read_text(encoding="utf-8")).substitute(quoted))


# Every chart: no frame at the top and right, a faint grid behind the curves.
AXES = settings(Path(__file__).with_suffix(".yaml"))
