"""Colab's runtime without Colab: a venv of the packages that Google publishes, and a repository to clone from."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from workbench.base.notebook import with_parameters

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PINS = HERE / "colab_packages.txt"
# What Colab's own libraries were built for is in other packages there than in the build of torch that the index has.
GPU_LIBRARIES = re.compile(r"nvidia-|cuda-|torch(audio|codec)$|.*-cu1\d$")
DRIVE = '''\
"""Stands for Google's own, which talks to a browser: a folder that is mounted."""
from pathlib import Path


def mount(mountpoint):
    (Path(mountpoint) / "MyDrive").mkdir(parents=True)
'''


def name_of(line: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[=@ \[;]", line)[0]).lower()


def python() -> str:
    """Colab's Python, 3.13, if there is one; else the one that runs the tests."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    offered = [*sorted(map(str, pyenv.glob("3.13*/bin/python3.13"))), shutil.which("python3.13")]
    asked = subprocess.run(
        ["uv", "python", "find", "--no-python-downloads", "--no-project", "3.13"], capture_output=True, text=True
    )
    for each in [asked.stdout.strip(), *offered]:
        if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return each
    return sys.executable


def uv(*arguments: str | Path, **options) -> str:
    done = subprocess.run(["uv", *map(str, arguments)], capture_output=True, text=True, cwd=HERE, **options)
    assert done.returncode == 0, f"uv {' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass
class Runtime:
    """A stand-in for a Colab runtime."""

    python: Path
    content: Path  # where its kernels start: /content there
    repository: Path  # what its cells clone
    before: dict[str, str]  # version of each package before anything was set up

    @property
    def home(self) -> Path:
        return self.content / "drive" / "MyDrive" / "grpo-workbench"

    @property
    def environment(self) -> dict[str, str]:
        ours = ("PYTHONPATH", "WORKBENCH_HOME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
        own = {name: value for name, value in os.environ.items() if name not in ours}
        return own | {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "COLAB_RELEASE_TAG": "release-colab",
            # As Colab has had them: its own Python for uv, and constraints in a file that is not there (colabtools#5237).
            "UV_SYSTEM_PYTHON": "true",
            "UV_CONSTRAINT": "/backend-container/containers/requirements.constraints",
            "UV_BUILD_CONSTRAINT": "/backend-container/containers/build.constraints",
            "JUPYTER_DATA_DIR": str(self.content / "jupyter"),
            "JUPYTER_CONFIG_DIR": str(self.content / "jupyter"),
            "IPYTHONDIR": str(self.content / "ipython"),
        }

    def versions(self) -> dict[str, str]:
        return versions(self.python)

    def run(
        self, stem: str, parameters: dict | None = None, cells: list[str] | None = None, before: Sequence[str] = ()
    ) -> nbformat.NotebookNode:
        """The notebook in a fresh kernel, with its outputs; or only `before`, its set-up cell, and `cells`."""
        notebook = nbformat.read(self.repository / "notebooks" / f"{stem}.ipynb", as_version=4)
        with_parameters(notebook, parameters or {}, stem)
        setup = notebook.cells[1]
        # The one line of the cell that the form shows.
        setup.source = re.sub(r"(?m)^runs_in = \S+", f"runs_in = {str(self.home)!r}", setup.source)
        if cells is not None:
            new = nbformat.v4.new_code_cell
            notebook.cells = [*map(new, before), setup, *map(new, cells)]
        source, out = self.content / f"{stem}.ipynb", self.content / f"{stem}.out.ipynb"
        nbformat.write(notebook, source)
        done = subprocess.run(
            [self.python, HERE / "execute.py", source, out],
            cwd=self.content, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        assert out.exists(), done.stderr
        return nbformat.read(out, as_version=4)


def versions(python: Path) -> dict[str, str]:
    listed = json.loads(uv("pip", "list", "--format", "json", "--python", python))
    return {name_of(each["name"]): each["version"] for each in listed}


def texts(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def errors(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return ["\n".join(output["traceback"]) for output in outputs if output["output_type"] == "error"]


def make(folder: Path) -> Runtime:
    """A runtime in which nothing was set up yet."""
    venv, content = _venv(folder), folder / "content"
    content.mkdir()
    # A project of the user's own, with settings for uv that are not for our packages.
    (content / "pyproject.toml").write_text('[tool.uv]\noverride-dependencies = ["numpy<2"]\n')
    found = Runtime(venv, content, _repository(folder), versions(venv))
    print(f"\n{len(found.before)} packages, Python of {python()}")
    return found


def _venv(folder: Path) -> Path:
    uv("venv", "--quiet", "--no-project", "--python", python(), folder / "venv")
    venv = folder / "venv" / "bin" / "python"
    [site] = (folder / "venv" / "lib").glob("python3.*/site-packages")
    published = [line.partition("+")[0] for line in PINS.read_text().split("\n") if "==" in line]
    pins = folder / "pins.txt"
    pins.write_text("\n".join([line for line in published if not GPU_LIBRARIES.match(name_of(line))]))
    roots, exclude = folder / "roots.txt", folder / "exclude.txt"
    roots.write_text("ipython\nipykernel\nipywidgets\nnotebook\nnbclient\noptree\n")
    exclude.write_text("xformers; sys_platform == 'never'")
    # Ours and Jupyter's dependencies at Colab's versions, whether these fit one another or not.
    closure = uv(
        "pip", "compile", "--quiet", "--no-config", "--python", venv, "--no-header", "--no-annotate",
        "--override", pins, "--override", exclude, "--extra", "unsloth", ROOT / "pyproject.toml", roots,
    )  # fmt: skip
    wanted = {name_of(line) for line in closure.splitlines()}
    install = ["pip", "install", "--quiet", "--no-config", "--python", venv]
    uv(*install, "--no-deps", *[line for line in pins.read_text().split() if name_of(line) in wanted])
    torch = next(line for line in published if name_of(line) == "torch")
    uv(*install, "--override", pins, torch)
    for line in PINS.read_text().split():
        if "+" in line and name_of(line) in wanted:
            _built_for(site, line)
    # What is left is only listed, so that the resolver meets it.
    there = versions(venv)
    for line in published:
        name, version = line.split("==")
        if name_of(name) not in there:
            info = site / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (info / "RECORD").write_text("")
    (site / "google" / "colab").mkdir(parents=True)
    (site / "google" / "colab" / "__init__.py").write_text("")
    (site / "google" / "colab" / "drive.py").write_text(DRIVE)
    return venv


def _built_for(site: Path, line: str) -> None:
    # Colab's build is of another index, and its version says so: one that no resolver finds anywhere.
    name, version = line.split("==")
    info = site / f"{name}-{version.partition('+')[0]}.dist-info"
    metadata = (info / "METADATA").read_text()
    (info / "METADATA").unlink()  # it is a hard link into uv's cache, which is everybody's
    (info / "METADATA").write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", metadata, count=1))
    info.rename(site / f"{name}-{version}.dist-info")


def _repository(folder: Path) -> Path:
    """This repository as it lies here, with an address: its own."""
    copy = folder / "repository"
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    project = copy / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^Repository = ".*"', f'Repository = "{copy.as_uri()}"', project.read_text()))
    subprocess.run([sys.executable, copy / "tools" / "setup_cell.py"], check=True)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "as it lies here"]):
        subprocess.run([*git, *command], cwd=copy, check=True)
    raw = copy / "raw" / "main" / "workbench" / "commands"  # where a host of repositories has its files, to download one by one
    raw.mkdir(parents=True)
    shutil.copyfile(copy / "workbench" / "commands" / "hosted.py", raw / "hosted.py")
    return copy
