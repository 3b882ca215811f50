"""A user whom the system does not know: no HOME, no entry in passwd, as under `docker run --user 12345`."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from workbench.cache import cache_folder
from workbench.doctor import PROBES
from workbench.exporting.gguf import converter
from workbench.exporting.public import clean
from workbench.exporting.pushing import secret_in
from workbench.workspace import home_folder


@pytest.fixture
def homeless(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setenv("HOME", "")  # put back afterwards: the fallback sets it
    monkeypatch.delenv("HOME")
    for name in ("XDG_CACHE_HOME", "LLAMA_CPP"):
        monkeypatch.delenv(name, raising=False)
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


@pytest.mark.parametrize("first", range(4))
def test_what_asks_for_a_home_gets_one_whoever_asks_first(homeless, first, tmp_path):
    card = tmp_path / "card.md"
    card.write_text("nothing secret")
    asks = [
        lambda: cache_folder() == homeless / f"home-{os.getuid()}" / ".cache" / "grpo-workbench",
        lambda: clean({"path": "/data/somebody/rows.jsonl"}) == {"path": "rows.jsonl"},
        lambda: secret_in(card) == "",
        lambda: converter() is None,
    ]
    assert asks[first]()


def test_the_doctor_says_that_it_does_not_stay(homeless):
    found = PROBES["home folder"]()
    assert (found.works, found.detail) == (False, str(homeless / f"home-{os.getuid()}"))
    assert "HOME" in found.remedy


def test_the_doctor_has_nothing_to_say_of_a_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PROBES["home folder"]() == (True, str(tmp_path), "")
