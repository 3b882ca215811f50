"""Set-up on Colab and Kaggle, without either: what can be held in seconds. `tests/hosted` installs for real."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from workbench.base.errors import HostedError
from workbench.commands import hosted
from workbench.commands.hosted import host, set_up

ROOT = Path(__file__).parents[2]
setup_cell = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "setup_cell.py")))


def code(address: str | None = None) -> str:
    text = "".join(setup_cell.cell("01_dataset")["source"])
    return text if address is None else text.replace(setup_cell.address(), address)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Neither Colab nor Kaggle, in an empty folder, and no word of either in the environment."""
    for name in (*os.environ.keys(), "CUDA_VISIBLE_DEVICES", "WORKBENCH_HOME"):
        if name.startswith(("COLAB_", "KAGGLE_")) or name in ("CUDA_VISIBLE_DEVICES", "WORKBENCH_HOME"):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hosted, "_home_set_here", "")
    monkeypatch.setattr(hosted, "_outdated", [])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def colab(elsewhere, monkeypatch):
    # delenv of what was not there restores nothing: what `set_up` puts there is taken away again by these two.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("WORKBENCH_HOME", "")
    monkeypatch.delenv("WORKBENCH_HOME")
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    return elsewhere


@pytest.fixture
def ready(monkeypatch):
    monkeypatch.setattr(hosted, "in_place", lambda: True)


def program(folder: Path, name: str, script: str, monkeypatch) -> None:
    """Put a program first on the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def bare(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Python without site-packages: nothing of ours is installed, and nothing of anybody's."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )


# -- the cell --------------------------------------------------------------------------------------------------------------


def test_anywhere_else_cell_and_function_do_nothing_and_say_nothing(elsewhere, capfd):
    done = bare(code(), elsewhere)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    set_up()
    assert capfd.readouterr() == ("", "")
    assert list(elsewhere.iterdir()) == []
    assert "WORKBENCH_HOME" not in os.environ


@pytest.mark.parametrize("variable", ["COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"])
def test_without_a_copy_and_an_address_the_cell_fails_beside_its_remedy(elsewhere, variable):
    nowhere = (elsewhere / "nowhere").as_uri()
    done = bare(code(nowhere), elsewhere, **{variable: "x"})
    assert done.returncode != 0
    assert "URLError" in done.stderr
    [line] = [line for line in code().splitlines() if "address = " in line]
    for words in ("switch Internet on", "upload a copy as the folder grpo-workbench"):
        assert words in line
    assert not (elsewhere / "grpo-workbench").exists()


def offered(folder: Path) -> str:
    """An address that has this file to download, and no repository to clone."""
    raw = folder / "raw" / "main" / "workbench" / "commands"
    raw.mkdir(parents=True)
    shutil.copyfile(ROOT / "workbench" / "commands" / "hosted.py", raw / "hosted.py")
    return folder.as_uri()


def test_what_git_says_is_shown(elsewhere):
    address = offered(elsewhere / "address")
    done = bare(code(address), elsewhere, KAGGLE_KERNEL_RUN_TYPE="x")
    assert re.search(rf"RuntimeError: {address}: .*fatal: .*not", done.stderr, re.DOTALL)
    assert f"remedy: switch Internet on, or upload a copy of the repository as {elsewhere}/grpo-workbench" in done.stderr


def test_it_is_cloned_where_there_is_no_copy(elsewhere):
    origin = elsewhere / "origin"
    address = offered(origin)
    (origin / "workbench" / "commands").mkdir(parents=True)
    (origin / "workbench" / "commands" / "hosted.py").write_text("def set_up(runs_in): print(__file__, runs_in)")
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for command in (["init", "--quiet"], ["add", "workbench"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], cwd=origin, check=True)
    (elsewhere / "content").mkdir()
    done = bare(code(address), elsewhere / "content", KAGGLE_KERNEL_RUN_TYPE="x")
    file, runs_in = done.stdout.split()
    assert Path(file) == elsewhere / "content" / "grpo-workbench" / "workbench" / "commands" / "hosted.py", done.stderr
    assert runs_in == "/content/drive/MyDrive/grpo-workbench"


def test_the_cell_is_short():
    assert len(code().splitlines()) <= 8


@pytest.mark.parametrize("place", ["grpo-workbench", "drive/grpo-workbench", "input/copies/grpo-workbench"])
def test_a_copy_that_is_there_is_taken(elsewhere, place):
    copy = elsewhere / place / "workbench" / "commands"
    copy.mkdir(parents=True)
    (copy / "hosted.py").write_text("def begin(runs_in, address): print(__file__, runs_in, address)")
    text = code().replace("/kaggle/input", f"{elsewhere}/input")
    text = text.replace("/content/drive/MyDrive/grpo-workbench", f"{elsewhere}/drive/grpo-workbench")
    done = bare(text, elsewhere, KAGGLE_KERNEL_RUN_TYPE="Interactive")
    file, runs_in, address = done.stdout.split()
    assert elsewhere / file == copy / "hosted.py"
    assert (runs_in, address) == (f"{elsewhere}/drive/grpo-workbench", setup_cell.address())


def test_a_copy_in_a_drive_that_is_not_mounted_yet_is_taken(elsewhere):
    google = elsewhere / "google" / "colab"
    google.mkdir(parents=True)
    (google / "drive.py").write_text("""
from pathlib import Path

def mount(folder):
    print("mounted", folder)
    copy = Path(folder, "MyDrive", "grpo-workbench", "workbench", "commands")
    copy.mkdir(parents=True)
    (copy / "hosted.py").write_text("def set_up(runs_in): print(__file__)")
""")
    text = code(offered(elsewhere / "address")).replace("/content/drive", f"{elsewhere}/drive")
    done = bare(f"import sys; sys.path.insert(0, {str(elsewhere)!r})\n{text}", elsewhere, COLAB_RELEASE_TAG="x")
    copy = elsewhere / "drive" / "MyDrive" / "grpo-workbench" / "workbench" / "commands" / "hosted.py"
    assert done.stdout.splitlines() == [f"mounted {elsewhere}/drive", str(copy)], done.stderr


def test_set_up_needs_nothing_but_python(elsewhere):
    command = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import workbench.commands.hosted as h; print(h.host())"
    done = bare(command, elsewhere)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_cells_and_badges_show_the_one_address_of_pyproject(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "notebooks", copy / "notebooks")
    here = setup_cell.address()
    project = (ROOT / "pyproject.toml").read_text()
    assert project.count(here) == 1
    (copy / "pyproject.toml").write_text(project.replace(here, "https://example.org/them/theirs"))
    setup_cell.write(copy)
    for file in (copy / "notebooks").glob("*.ipynb"):
        text = file.read_text()
        assert here not in text
        assert "https://example.org/them/theirs" in text
        assert urlsplit(here).path not in text
    written = {file.name: file.read_text() for file in (copy / "notebooks").glob("*.ipynb")}
    setup_cell.write(copy)
    assert written == {file.name: file.read_text() for file in (copy / "notebooks").glob("*.ipynb")}


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda file: file.stem)
def test_badges_open_the_notebook_that_they_stand_in(file):
    title = json.loads(file.read_text())["cells"][0]
    place = file.relative_to(ROOT).as_posix()
    assert title == setup_cell.with_badges(title, place), "python tools/setup_cell.py"
    here = setup_cell.address()
    links = dict(re.findall(r"\[!\[Open in (\w+)\]\(attachment:.*?\)\]\((.*?)\)", "".join(title["source"])))
    assert links == {
        "Colab": f"https://colab.research.google.com/github{urlsplit(here).path}/blob/main/{place}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src={here}/blob/main/{place}",
    }
    pictures = re.findall(r"\(attachment:(.*?)\)", "".join(title["source"]))
    assert list(title["attachments"]) == pictures
    assert title["source"][0].startswith("# ")


# -- the host --------------------------------------------------------------------------------------------------------------


def test_kaggle_is_not_taken_for_colab(colab, monkeypatch, ready):
    assert host() == "Colab"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")  # its image is Colab's, variables included
    assert host() == "Kaggle"
    set_up()
    assert os.environ["WORKBENCH_HOME"] == "/kaggle/working"


TWO = 'echo "Tesla T4"; echo "Tesla T4"'


def test_of_two_gpus_one_is_used(colab, monkeypatch, ready, capsys):
    program(colab / "bin", "nvidia-smi", TWO, monkeypatch)
    set_up(str(colab / "home"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert "Tesla T4 and Tesla T4" in capsys.readouterr().out


def test_one_gpu_and_a_choice_of_the_users_are_left_alone(colab, monkeypatch, ready, capsys):
    program(colab / "bin", "nvidia-smi", 'echo "Tesla T4"', monkeypatch)
    set_up(str(colab / "home"))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    program(colab / "bin", "nvidia-smi", TWO, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    set_up(str(colab / "home"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("begun", [True, False])
def test_two_gpus_after_torch_has_begun_is_too_late(colab, monkeypatch, ready, begun):
    program(colab / "bin", "nvidia-smi", TWO, monkeypatch)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: begun)))
    if begun:
        with pytest.raises(HostedError, match="(?s)2 GPUs.*chosen before torch starts.*Runtime > Restart session"):
            set_up(str(colab / "home"))
    else:
        set_up(str(colab / "home"))
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (None if begun else "0")


def test_without_a_gpu_it_says_so_and_goes_on(colab, monkeypatch, ready, capsys):
    program(colab / "bin", "nvidia-smi", "echo it failed to talk to its driver; exit 9", monkeypatch)
    set_up(str(colab / "home"))
    assert "no GPU: enough for the embedded policy" in capsys.readouterr().out


# -- where runs go ---------------------------------------------------------------------------------------------------------


def drive(monkeypatch, mount) -> None:
    monkeypatch.setitem(sys.modules, "google", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(drive=SimpleNamespace(mount=mount)))


def test_runs_go_to_drive(colab, monkeypatch, ready, capsys):
    asked = []
    drive(monkeypatch, lambda folder: (asked.append(folder), Path(folder, "MyDrive").mkdir(parents=True)))
    home = colab / "drive" / "MyDrive" / "a" / "b"
    set_up(str(home))
    set_up(str(home))
    assert asked == [str(colab / "drive")], "once: it is mounted by then"
    assert home.is_dir()
    assert os.environ["WORKBENCH_HOME"] == str(home)
    assert "in your Drive" in capsys.readouterr().out
    set_up(str(colab / "elsewhere"))  # another folder in the form, and the cell again
    assert os.environ["WORKBENCH_HOME"] == str(colab / "elsewhere")


@pytest.mark.parametrize("inside", ["MyDrive", "MyDrive/", "Shareddrives/ours", "MyDrive/a/drive"])
def test_any_folder_of_a_drive_is_in_it(colab, monkeypatch, ready, inside):
    asked = []
    drive(monkeypatch, lambda folder: (asked.append(folder), Path(folder, "MyDrive").mkdir(parents=True)))
    set_up(f"{colab}/drive/{inside}")
    assert asked == [str(colab / "drive")]
    assert os.environ["WORKBENCH_HOME"] == f"{colab}/drive/{inside}"


def test_a_drive_that_is_declined_is_said_and_the_session_goes_on(colab, monkeypatch, ready, capsys):
    def mount(folder):
        raise ValueError("mount failed\nand more")

    drive(monkeypatch, mount)
    set_up(str(colab / "drive" / "MyDrive" / "a"))
    said = capsys.readouterr().out
    assert "Drive is not mounted: mount failed\n" in said
    assert f"tasks and runs: {ROOT} (lost with this runtime; run this cell again to choose Drive)" in said
    assert os.environ["WORKBENCH_HOME"] == str(ROOT)


def test_a_folder_that_the_user_chose_stays(colab, monkeypatch, ready):
    monkeypatch.setenv("WORKBENCH_HOME", "/mine")
    set_up(str(colab / "home"))
    assert os.environ["WORKBENCH_HOME"] == "/mine"


# -- packages --------------------------------------------------------------------------------------------------------------


def distribution(site: Path, name: str, version: str, **files: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that comes first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_everything_in_place_is_seen_without_asking_uv(colab, site, monkeypatch, capsys):
    distribution(site, "grpo_workbench", "0.1.0", direct_url__json=json.dumps({"url": ROOT.as_uri()}))
    program(colab / "bin", "uv", "echo asked; exit 1", monkeypatch)
    set_up(str(colab / "home"))
    assert "asked" not in capsys.readouterr().out
    distribution(site, "peft", "0.20.0")
    with pytest.raises(HostedError, match="asked"):
        set_up(str(colab / "home"))


@pytest.mark.parametrize("url", ["file:///elsewhere", None])
def test_another_copy_of_the_workbench_is_not_this_one(site, url):
    distribution(site, "grpo_workbench", "0.1.0", **({"direct_url__json": json.dumps({"url": url})} if url else {}))
    assert not hosted.in_place()


def replace_toy(site: Path, monkeypatch):
    def install(command, rule):
        shutil.rmtree(site / "toy-1.0.dist-info")
        distribution(site, "toy", "2.0")
        distribution(site, "new", "1.0")
        monkeypatch.setattr(hosted, "in_place", lambda: True)

    return install


@pytest.mark.parametrize("imported", [True, False])
def test_only_a_replaced_package_that_is_in_use_asks_for_a_restart(colab, site, monkeypatch, capsys, imported):
    (site / "toy.py").write_text("")
    distribution(site, "toy", "1.0")
    monkeypatch.setattr(hosted, "_run", replace_toy(site, monkeypatch))
    monkeypatch.setattr(hosted, "in_place", lambda: False)
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, "toy", importlib.import_module("toy"))
        for _ in range(2):  # again without a restart: no better
            with pytest.raises(HostedError, match=r"(?s)^toy: replaced.*Restart session\), then run this cell again"):
                set_up(str(colab / "home"))
    else:
        set_up(str(colab / "home"))
    said = capsys.readouterr().out
    assert "packages: 1 added, 1 replaced\n  toy 1.0 -> 2.0\n" in said
    assert ("ready" in said) is not imported


def test_without_uv_and_without_internet_the_remedy_is_to_switch_it_on(colab, monkeypatch):
    monkeypatch.setenv("PATH", str(colab))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(colab))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HostedError, match="(?s)cannot be installed here:.*with uv.*switch Internet on"):
        hosted._uv()


def test_what_the_host_brings_is_never_resolved_away(colab, monkeypatch, tmp_path):
    # A workbench that cannot live with the host's numpy: uv refuses, in its own words, and nothing is touched. A folder
    # whose pyproject.toml would talk uv into it, as the repository's own might, is not listened to.
    subprocess.run(["uv", "venv", "--quiet", "--no-project", str(tmp_path / "venv")], check=True)
    venv = tmp_path / "venv"
    [site] = (venv / "lib").glob("python3.*/site-packages")
    distribution(site, "numpy", "2.1.3")
    project = '[project]\nname = "grpo-workbench"\nversion = "1"\ndependencies = ["numpy<1"]\n'
    (tmp_path / "pyproject.toml").write_text(project + '[tool.uv]\noverride-dependencies = ["numpy<2"]\n')
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "pyproject.toml").write_text(project)
    monkeypatch.setattr(hosted, "REPOSITORY", repository)
    monkeypatch.setattr(sys, "executable", str(venv / "bin" / "python"))
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("UV_OFFLINE", "1")
    for variable in ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"):
        monkeypatch.setenv(variable, "/not/there")
    with pytest.raises(HostedError) as caught:
        hosted._install("Colab")
    for words in ("numpy<1", "numpy==2.1.3", "what Colab brings for the GPU", "Runtime version"):
        assert words in " ".join(str(caught.value).split())
    assert sorted(site.glob("numpy*")) == [site / "numpy-2.1.3.dist-info"]
