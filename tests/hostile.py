"""What a completion, a row or a name may hold that a terminal obeys or hides, and how to look for it in output."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

# Clears the screen, writes the clipboard, renames the window, rings, overwrites, and hides: as ESC and as C1, with bidi,
# zero-width and tag characters, and in rich's own markup.
HOSTILE = (
    "\x1b[2J\x1b[31m\x1b]52;c;bWFsaWNl\x07\x1b]0;OWNED\x07\x1bP1$q\x1b\\\r\x08\x0b\x0c\x7f\x85\x9b2J\x9d0;x\x9c"
    "\u202e\u2066\u200b\u200d\u2060\u2028\u00ad\ufeff\U000e0041[red]r[/red][link=http://e.vil]l[/link]:warning:"
)
VISIBLE = r"\x1b[2J\x1b[31m\x1b]52;c;bWFsaWNl\x07"  # how it begins where it is shown
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
# What a bar of rich draws with; a terminal device makes \r\n of \n.
_BAR = re.compile(r"\r(?=\n)|\r?\x1b\[(?:\?25[lh]|2K|1A|[\d;]*m)|\r(?=\x1b\[2K)")


def obeyed(output: str, bar: bool = False) -> list[str]:
    """The characters of an output that a terminal would obey or hide.

    Args:
        bar: a progress bar was drawn in it; its own sequences are not counted.
    """
    return _UNSAFE.findall(_BAR.sub("", output) if bar else output)


class _Formulas(HTMLParser):
    """Finds the text of a page in which MathJax would look for formulas: all but that in these tags and this class."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[bool] = []  # whether it leaves alone what stands in each element that is open
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("br", "img", "input", "hr"):
            classes = (dict(attributes).get("class") or "").split()
            self.open.append(tag in ("pre", "code", "textarea") or {"tex2jax_ignore", "mathjax_ignore"} <= set(classes))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "img", "input", "hr"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not any(self.open) and re.search(r"\$|\\[(\[]", data):
            self.found.append(data)


def formulas(page: str) -> list[str]:
    """What MathJax may make a formula of in a page of HTML."""
    parser = _Formulas()
    parser.feed(page)
    parser.close()
    assert not parser.open, "an element is left open"
    return parser.found


def in_a_terminal(
    *arguments: str, home: Path, stdout: bool = True, once_shown: Callable[[], object] = lambda: None
) -> tuple[int, str, str]:
    """(exit code, what the terminal showed, what went to standard output if that is no terminal) of `workbench ARGUMENTS`.

    Args:
        once_shown: called when the terminal has shown something.
    """
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(ours, 65536))
            except OSError:  # how a terminal says that nobody writes any more
                return
            if len(shown) == 1:
                once_shown()

    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *arguments], cwd=home, stdin=subprocess.DEVNULL, stderr=theirs,
        stdout=theirs if stdout else subprocess.PIPE,
        env={**os.environ, "WORKBENCH_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        printed = process.stdout.read() if process.stdout else b""
        code = process.wait(240)
    finally:
        process.kill()
        reader.join(10)
        os.close(ours)
    return code, b"".join(shown).decode(), printed.decode()


def run_command(monkeypatch, capfd, *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `workbench ARGUMENTS`, in this process."""
    from workbench.commands.cli import main

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(sys, "argv", ["workbench", *arguments])
    capfd.readouterr()
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    return code, *capfd.readouterr()
