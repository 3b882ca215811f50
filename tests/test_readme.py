"""The README is true of the repository: what it links to exists, and nothing was left to be filled in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_and_picture_exists():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert len(targets) >= 7
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


def test_the_tree_names_what_is_there():
    tree = README[README.index("```\nnotebooks/") :]
    for folder in sorted(path for path in (ROOT / "workbench").iterdir() if path.is_dir() and path.name[0] != "_"):
        assert f"{folder.name}/" in tree


def test_every_option_of_a_command_is_one_of_its_own():
    import typer

    from workbench.cli import app

    commands = typer.main.get_command(app).commands
    named = re.findall(r"\bworkbench ([a-z]+)([^#`\n]*)", README)
    asked = {(name, option) for name, rest in named if name in commands for option in re.findall(r"--[a-z][a-z-]+", rest)}
    known = {(name, option) for name, each in commands.items() for one in each.params for option in one.opts}
    assert len(asked) > 10
    assert asked - known == set()
