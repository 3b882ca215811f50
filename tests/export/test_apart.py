"""Work in a process of its own: its answer, its progress, and how it ends."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driving import waited_for

from workbench.base.errors import DataError, ExportError
from workbench.exporting import apart


def runs_apart(tmp_path, monkeypatch, body, progress=print):
    (tmp_path / "at_work.py").write_text(f"import os, sys, time\n{body}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "at_work", raising=False)
    return apart.run_apart(importlib.import_module("at_work").work, {"asked": [1, 2]}, progress)


def test_work_apart_answers_and_says_how_far_it_is(home, tmp_path, monkeypatch):
    seen = []
    body = "print('at import')\ndef work(request, progress):\n    print('7 8')\n    progress(1, 2)\n"
    body += "    return {'pid': os.getpid(), **request}"
    found = runs_apart(tmp_path, monkeypatch, body, lambda *own: seen.append(own))
    assert found["asked"] == [1, 2]
    assert found["pid"] != os.getpid()
    assert seen == [(0, 0), (0, 0), (1, 2)]  # it starts, has imported what it needs, and works


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def work(request, progress):\n    os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("def work(request, progress):\n    raise ValueError('of its own')", r"exit code 1\n(.|\n)*ValueError: of its own"),
        ("def work(request, progress):\n    from workbench.base.errors import DataError\n"
         "    raise DataError('a value', rule='a rule', remedy='a remedy')", "^a value\n  rule:   a rule"),
    ],
)  # fmt: skip
def test_a_process_that_ends_badly_says_why(home, tmp_path, monkeypatch, body, said):
    with pytest.raises((ExportError, DataError), match=said):
        runs_apart(tmp_path, monkeypatch, body)


def test_the_process_ends_with_its_caller_however_that_ends(home, tmp_path):
    body = f"def work(request, progress):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    body += "    progress(1, 2)\n    time.sleep(600)"
    (tmp_path / "at_work.py").write_text(f"import os, time\n{body}")
    code = "import os, at_work\nfrom workbench.exporting import apart\n"
    code += "apart.run_apart(at_work.work, {}, lambda done, total: total and os.kill(os.getpid(), 15))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -15
    waited_for(lambda: not running(int((tmp_path / "pid").read_text())))


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_interrupt_ends_the_process(home, tmp_path, monkeypatch):
    def interrupt(done, total):
        if total:
            raise KeyboardInterrupt

    body = f"def work(request, progress):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    body += "    progress(1, 2)\n    time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        runs_apart(tmp_path, monkeypatch, body, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
