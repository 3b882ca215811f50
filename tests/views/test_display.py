"""Results show themselves in a real IPython: text and a table or picture, and what others wrote in them is text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import formulas, obeyed
from samples import SAMPLES, scored

import workbench
from workbench.views import display

PACKAGE = Path(workbench.__file__).parent


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell()
    assert display.register(made)
    return made


@pytest.mark.parametrize("kind", display.VIEWS)
def test_a_result_shows_itself(kind, shell, home):
    result = SAMPLES[kind]()
    assert f"{type(result).__module__}.{type(result).__qualname__}" == kind
    bundle, _ = shell.display_formatter.format(result)
    assert bundle["text/plain"].strip()
    assert "image/png" in bundle or "<" in bundle["text/html"]
    page = bundle.get("text/html", "")
    assert not re.search(r"<script|<img src=x", page)
    assert not formulas(page)
    for text in (page, bundle["text/plain"]):
        assert obeyed(text) == []
        text.encode()  # a lone surrogate cannot be saved
    assert bundle["text/plain"] == str(display.view_of(result))


def test_a_kind_of_a_known_result_shows_itself_too(shell):
    class Mine(type(scored())):
        pass

    batch = scored()
    bundle, _ = shell.display_formatter.format(Mine(**{name: getattr(batch, name) for name in batch.__dataclass_fields__}))
    assert "<table" in bundle["text/html"]


def test_what_has_no_view_is_its_own():
    assert display.view_of(3) == 3


def test_no_shell_no_display():
    assert not display.register(object())


AFTER = """
import sys
import workbench as wb
assert "IPython" not in sys.modules
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
batch = wb.score(lambda completions, **_: [1.0, 0.0], "p", ["x", "y"])  # a name of the face, used with a shell there
print(sorted(shell.display_formatter.format(batch)[0]))
"""


def test_ipython_may_be_imported_after_the_workbench():
    out = subprocess.run([sys.executable, "-c", AFTER], capture_output=True, text=True, check=True, timeout=300).stdout
    assert ast.literal_eval(out.splitlines()[-1]) == ["text/html", "text/plain"]


def test_the_views_that_are_named_are_there():
    for view in display.VIEWS.values():
        module, _, name = view.partition(":")
        tree = ast.parse((PACKAGE / f"{module.removeprefix('workbench.').replace('.', '/')}.py").read_text())
        assert name in {getattr(node, "name", None) for node in tree.body}


def test_a_cell_writes_its_file_and_never_over_somebodys_work(shell, home, capsys):
    file = home / "tasks" / "mine" / "task.py"

    def cell(text: str) -> str:
        shell.run_cell_magic("write_unless_edited", str(file), text)
        return capsys.readouterr().out.strip()

    assert cell("task = 1\n").endswith("task.py: written")
    assert cell("task = 1\n").endswith("task.py: as in this cell")
    assert cell("task = 2\n").endswith("task.py: written"), "it held what the cell wrote last"
    file.write_text("task = 3  # edited in an editor\n")
    for text in ("task = 2\n", "task = 4\n"):  # a new kernel knows no more than this one: all that is kept is on disk
        assert "was edited since this cell wrote it: it stays" in cell(text)
        assert file.read_text() == "task = 3  # edited in an editor\n"
    file.write_text("task = 2\n")
    assert cell("task = 5\n").endswith("written"), "the edit was taken back"
    file.unlink()
    assert cell("é = 6\r\n").endswith("written")
    assert file.read_bytes() == "é = 6\r\n".encode()


def test_a_file_that_no_cell_wrote_stays_and_without_a_file_nothing_is_written(shell, home, capsys):
    (home / "task.py").write_text("mine\n")
    shell.run_cell_magic("write_unless_edited", str(home / "task.py"), "the cell's\n")
    assert "was not written by this cell: it stays" in capsys.readouterr().out
    assert (home / "task.py").read_text() == "mine\n"
    shell.run_cell_magic("write_unless_edited", "", "the cell's\n")
    assert capsys.readouterr().out == "nothing written\n"
    assert sorted(file.name for file in home.iterdir()) == ["task.py"]
