"""Text of others in a terminal: shown, never obeyed, whoever prints it."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys

import pytest
from hostile import HOSTILE, obeyed
from tqdm import tqdm

from workbench.base.errors import RewardError
from workbench.base.printable import Guarded, guard_output, printable, unguarded


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;t\x07", r"\x1b]0;t\x07"),
        ("a\r\n", "a\\r\n"),
        ("\x7f\x9b", r"\x7f\x9b"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
        ("é 数 → 🙂", "é 数 → 🙂"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_an_error_is_printable_in_all_its_parts():
    error = RewardError(f"on {HOSTILE!s}", rule=HOSTILE, remedy=HOSTILE)
    try:
        raise error from ValueError(HOSTILE)
    except RewardError as raised:
        shown = "\n".join([str(raised), raised.value, raised.rule, raised.remedy, *raised._render_traceback_()])
    assert obeyed(shown) == []
    assert shown.count(r"\x1b]52;c;") >= 7


def test_a_guarded_stream_passes_on_printable_text_only():
    kept = io.StringIO()
    stream = Guarded(kept)
    print(HOSTILE, "\x1b[1;32mgreen\x1b[0m", file=stream)
    stream.writelines([HOSTILE, "\n"])
    assert obeyed(kept.getvalue()) == []
    assert r"\x1b[2J" in kept.getvalue()
    assert " green\n" in kept.getvalue()
    assert unguarded(stream) is kept is unguarded(kept)


def test_a_bar_of_tqdms_moves_the_cursor_and_nothing_else():
    kept = io.StringIO()
    with tqdm(total=2, file=Guarded(kept), desc=HOSTILE.replace("\r", ""), mininterval=0) as bar:
        bar.update(2)
    assert "\r" in kept.getvalue()
    assert obeyed(kept.getvalue().replace("\r", "")) == []


def test_every_print_of_a_guarded_process_is_printable(monkeypatch, capfd):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    guard_output()
    guard_output()
    print(HOSTILE)
    print(HOSTILE, file=sys.stderr)
    sys.excepthook(ValueError, ValueError(HOSTILE), None)
    out, err = capfd.readouterr()
    assert obeyed(out + err) == []
    assert out.count(r"]52;c;") == 1
    assert err.count(r"]52;c;") == 2


def test_what_a_pipes_encoding_lacks_is_written_as_its_escape(monkeypatch):
    kept = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(kept, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    guard_output()
    print("cut … here", flush=True)
    assert kept.getvalue() == b"cut \\u2026 here\n"


# -- streams that are closed or full -----------------------------------------------------------------------------------


def explained(redirect: str) -> subprocess.CompletedProcess:
    command = f"{shlex.quote(sys.executable)} -m workbench explain kl {redirect}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_what_cannot_be_told_beside_a_result_does_not_stop_it(redirect):
    found = explained(redirect)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("kl (metric")


@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&-", ">&- --json"])
def test_a_closed_standard_output_takes_the_result_and_the_exit_code_is_the_answer(redirect):
    found = explained(redirect)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize("redirect", [">/dev/full", ">/dev/full --json"])
def test_a_full_standard_output_is_named_and_no_disk_is_blamed(redirect):
    found = explained(redirect)
    assert found.returncode == 2
    assert os.strerror(errno.ENOSPC) in found.stderr
    assert "standard output" in found.stderr
    assert "MB are free" not in found.stderr
    assert len(found.stderr.splitlines()) == 3
