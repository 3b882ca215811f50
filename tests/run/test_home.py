"""A user whom the system does not know: no HOME, no entry in passwd, as under `docker run --user 12345`."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workbench.base.cache import cache_folder
from workbench.base.workspace import home_folder
from workbench.commands.doctor import PROBES
from workbench.exporting.public import clean
from workbench.exporting.pushing import secret_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
def homeless(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setenv("HOME", "")  # put back afterwards: the fallback sets it
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError):
        Path.home()
    return tmp_path


def test_one_in_the_folder_of_temporary_files_stands_in_and_libraries_find_it(homeless):
    home = home_folder()
    assert home == home_folder() == Path.home() == homeless / f"home-{os.getuid()}"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert os.path.expanduser("~/x") == f"{home}/x"


@pytest.mark.parametrize("before", ["mine", "open to all", "a link", "a file"])
def test_one_that_somebody_else_may_have_put_there_is_not_used(homeless, before):
    place, elsewhere = homeless / f"home-{os.getuid()}", homeless / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if before == "a link":
        place.symlink_to(elsewhere)
    elif before == "a file":
        place.touch(mode=0o600)
    else:
        place.mkdir()
        place.chmod(0o777 if before == "open to all" else 0o700)
    assert (home_folder() == place) is (before == "mine")
    assert Path.home().is_relative_to(homeless)
    assert stat.S_IMODE(Path.home().stat().st_mode) == 0o700
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("home", ["/proc/nowhere", "/etc/passwd", "/proc"])
def test_a_home_that_cannot_be_written_stays_home_and_the_cache_is_a_temporary_one(homeless, home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    assert str(home_folder()) == home
    assert cache_folder() == homeless / f"home-{os.getuid()}" / ".cache" / "grpo-workbench"


@pytest.mark.parametrize("first", range(3))
def test_what_asks_for_a_home_gets_one_whoever_asks_first(homeless, first, tmp_path):
    card = tmp_path / "card.md"
    card.write_text("nothing secret")
    asks = [
        lambda: cache_folder() == homeless / f"home-{os.getuid()}" / ".cache" / "grpo-workbench",
        lambda: clean({"path": "/data/somebody/rows.jsonl"}) == {"path": "rows.jsonl"},
        lambda: secret_in(card) == "",
    ]
    assert asks[first]()


def test_the_doctor_says_that_it_does_not_stay(homeless):
    found = PROBES["home folder"]()
    assert (found.works, found.detail) == (False, str(homeless / f"home-{os.getuid()}"))
    assert "HOME" in found.remedy


HELPED = """
import os, sys
from workbench.commands.cli import main
from workbench.commands.command import GROUPS
for command in (None, *(name for names in GROUPS.values() for name in names)):
    sys.argv = ["workbench", *filter(None, [command]), "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
"""


def test_help_writes_nothing_and_needs_nothing_that_is_kept(tmp_path):
    places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "HF_HOME": "hub", "TMPDIR": "tmp", "WORKBENCH_HOME": "work"}
    for place in places.values():
        (tmp_path / place).mkdir()
    environment = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run([sys.executable, "-c", HELPED], cwd=tmp_path / "work", env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("Usage:") > 15
    assert [each for place in places.values() for each in (tmp_path / place).iterdir()] == []


def test_the_doctor_has_nothing_to_say_of_a_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PROBES["home folder"]() == (True, str(tmp_path), "")
