"""What counts as a code token, and that a folder over its limit fails."""

from __future__ import annotations

import pytest

from tools import size
from tools.size import Size, excesses, size_of, sizes

LIMITS = {"tokens": {"run": 10, "top": 5, "instruments": 7}, "tokens_per_line": 7, "goal": 20, "house": 16}


def test_tokens_counted_by_hand():
    code = '"""A module."""\n\n# why\ndef double(x):\n    """Twice x."""\n    return 2 * x\n'
    # def double ( x ) : return 2 * x
    assert size_of(code) == Size(tokens=10, lines=6)
    assert size_of("x = 'a string that is used'\n").tokens == 3
    assert size_of("x = f'{a + f\"{b}\"} and {c:>{d}}' + 'e'\n").tokens == 5  # on every Python


@pytest.mark.parametrize("code", ["a = 1; b = 2\n", "a = 1\n\n\nb = 2\n", "a = (\n    1\n)\nb = 2\n"])
def test_packing_saves_nothing(code):
    assert size_of(code).tokens - code.count(";") - 2 * code.count("(") == 6


def test_folders_are_summed_and_the_largest_comes_first(tmp_path):
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "a.py").write_text("a = 1\n")
    (tmp_path / "run" / "inner" / "b.py").write_text("b = 2\n")
    (tmp_path / "c.py").write_text("c\n")
    assert sizes(tmp_path) == {"run": Size(6, 2), "top": Size(1, 1)}
    assert list(sizes(tmp_path)) == ["run", "top"]


@pytest.mark.parametrize(
    ("by_folder", "over"),
    [
        ({"run": Size(10, 5), "top": Size(5, 5)}, []),
        ({"run": Size(11, 5), "top": Size(5, 5)}, ["run"]),
        ({"run": Size(1, 5), "new": Size(1, 5)}, ["new"]),
        ({"run": Size(9, 1)}, ["9.00 tokens a line"]),
        ({"run": Size(10, 5), "top": Size(5, 5), "instruments": Size(7, 5)}, []),
        ({"run": Size(10, 5), "top": Size(7, 5)}, ["top", "house"]),
    ],
)
def test_what_is_over_its_limit_is_named(by_folder, over):
    total = Size(*map(sum, zip(*by_folder.values())))
    assert [line.partition(":")[0].partition(",")[0] for line in excesses(by_folder, total, LIMITS)] == over


def test_the_command_fails_where_a_limit_is_exceeded(tmp_path, monkeypatch, capsys):
    (tmp_path / "workbench").mkdir()
    (tmp_path / "workbench" / "a.py").write_text("a = 1\n")
    settings = "[tool.size]\ngoal = 9\nhouse = 9\ntokens_per_line = 7\n[tool.size.tokens]\ntop = {}\n"
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(settings.format(3))
    assert size.main() == 0
    (tmp_path / "pyproject.toml").write_text(settings.format(2))
    assert size.main() == 1
    assert "top: 3 tokens" in capsys.readouterr().out
