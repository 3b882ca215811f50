"""Set-up on Colab and Kaggle: what the host brings stays, what is missing is added, and runs outlive the session.

The first cell of every notebook calls `set_up`. Nothing but the standard library is imported here: when it runs, nothing
else of ours is there yet.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.run.errors import WorkbenchError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
KAGGLE_HOME = Path("/kaggle/working")
# The host's front end, notebook server and GPU libraries were built for these, and other notebooks count on them.
PROTECTED = (
    "torch", "torchaudio", "torchcodec", "torchvision", "triton", "nvidia-*", "cuda-*", "*-cu1?", "jax*", "tensorflow*",
    "keras*", "numpy", "pandas", "scipy", "pillow", "matplotlib*", "scikit-learn", "numba", "protobuf", "google-*", "requests",
    "ipython*", "ipykernel", "ipywidgets", "ipyparallel", "jupyter*", "nb*", "notebook*", "pyzmq", "tornado", "traitlets",
    "widgetsnbextension",
)  # fmt: skip
# Colab sets the first, and once set constraints to a file that was not there; the install says itself what and where.
_DECIDED_HERE = ("UV_SYSTEM_PYTHON", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_PRERELEASE")
_RESTART = {"Colab": "Runtime > Restart session", "Kaggle": "Run > Restart & clear cell outputs"}
_home_set_here = ""


class HostedError(WorkbenchError, RuntimeError):
    """The notebook's host could not be set up."""


def host() -> str:
    """ "Colab", "Kaggle", or "" anywhere else."""
    # Kaggle's image is made from Colab's, and carries its variables.
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else ""


def set_up(runs_in: str = "/content/drive/MyDrive/grpo-workbench") -> None:
    """Make this notebook's host ready for the workbench; where it is neither Colab nor Kaggle, do nothing.

    Run it as often as you like: what is in place is left as it is, within a second.

    Args:
        runs_in: Colab: the folder for `tasks/` and `runs/`, with its full path. In a Drive (".../MyDrive/...") it outlives
            the runtime, and the Drive is mounted first; "": beside the workbench. On Kaggle only /kaggle/working outlives a
            session, and that is taken.

    Raises:
        HostedError: if something cannot be installed beside what the host brings, or a module in use was replaced.
    """
    where = host()
    if not where:
        return
    began = time.monotonic()
    _one_gpu(where)
    _choose_home(where, runs_in)
    if unmet():
        _install(where)
    print(f"ready after {time.monotonic() - began:.0f} s")


# -- where runs go ---------------------------------------------------------------------------------------------------------


def _choose_home(where: str, runs_in: str) -> None:
    global _home_set_here
    if os.environ.get("WORKBENCH_HOME", "") != _home_set_here:
        print(f"tasks and runs: {os.environ['WORKBENCH_HOME']} (WORKBENCH_HOME)")
        return
    if where == "Kaggle":
        home, note = KAGGLE_HOME, "kept by Save Version"
    else:
        home, note = _on_colab(Path(runs_in or REPOSITORY))
    os.environ["WORKBENCH_HOME"] = _home_set_here = str(home)
    print(f"tasks and runs: {home} ({note})")


def _on_colab(home: Path) -> tuple[Path, str]:
    lost = "lost with this runtime"
    if "MyDrive" not in home.parts:
        return home, lost
    drive = Path(*home.parts[: home.parts.index("MyDrive")])
    try:
        if not (drive / "MyDrive").is_dir():
            from google.colab import drive as google_drive

            google_drive.mount(str(drive))
        home.mkdir(parents=True, exist_ok=True)
    except Exception as error:  # declined, no Drive on this account, a runtime that has none
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"Drive is not mounted: {said}")
        return REPOSITORY, f"{lost}; run this cell again to choose Drive"
    return home, "in your Drive"


# -- the GPU ---------------------------------------------------------------------------------------------------------------


def _one_gpu(where: str) -> None:
    names = _gpus()
    python = f"{where}, Python {sys.version_info.major}.{sys.version_info.minor}"
    print(f"{python}, {' and '.join(names) if names else 'no GPU: enough for the embedded policy'}")
    if len(names) < 2 or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise HostedError(
            f"{len(names)} GPUs, and this session has begun to use them",
            rule="a run has one GPU (CUDA_VISIBLE_DEVICES=0), chosen before torch starts",
            remedy=f"restart the session ({_RESTART[where]}), and run this cell first",
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    print("a run has one GPU: CUDA_VISIBLE_DEVICES=0")


def _gpus() -> list[str]:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()] if found.returncode == 0 else []


# -- packages --------------------------------------------------------------------------------------------------------------


def _project() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _versions() -> dict[str, str]:
    found = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    # The first on the path is the one that is imported.
    return {_name(name): version for name, version in reversed(found) if name and version}


def unmet() -> list[str]:
    """Requirements of the workbench that are not met here, itself included."""
    try:
        from packaging.requirements import Requirement

        source = importlib.metadata.distribution("grpo-workbench").read_text("direct_url.json")
    except ImportError:
        return ["grpo-workbench"]
    missing = [] if json.loads(source or "{}").get("url") == REPOSITORY.as_uri() else ["grpo-workbench"]
    wanted = [Requirement(text) for text in _project()["project"]["dependencies"]]
    return missing + [str(each) for each in wanted if not _met(each)]


def _met(wanted: Requirement) -> bool:
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    try:
        return wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def _install(where: str) -> None:
    before = _versions()
    kept = {name: version for name, version in before.items() if any(fnmatch.fnmatch(name, p) for p in PROTECTED)}
    overrides = _project().get("tool", {}).get("uv", {}).get("override-dependencies", [])
    with tempfile.TemporaryDirectory() as folder:
        constraints, override = Path(folder) / "kept.txt", Path(folder) / "overrides.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(kept.items())))
        override.write_text("".join(f"{line}\n" for line in overrides))
        command = [
            *_uv(), "pip", "install", "--python", sys.executable, "--break-system-packages",
            # uv takes settings, overrides among them, from a pyproject.toml wherever it is run.
            "--no-config",
            "--constraint", str(constraints), "--override", str(override), "--editable", str(REPOSITORY),
        ]  # fmt: skip
        said = _run(command, where, kept)
    importlib.invalidate_caches()
    after = _versions()
    replaced = {name: version for name, version in before.items() if after.get(name) != version}
    added = after.keys() - before.keys()
    if not added and not replaced:
        # uv is content, `unmet` is not: without this line, the cell would ask again, for ever.
        print(*said, sep="\n")
    print(f"packages: {len(added)} added, {len(replaced) or 'none'} replaced" + (":" if replaced else ""))
    for name, version in sorted(replaced.items()):
        print(f"  {name} {version} -> {after.get(name, 'removed')}")
    in_use = [name for name in sorted(replaced) if _in_use(name)]
    if in_use:
        raise HostedError(
            f"{', '.join(in_use)}: replaced, and this session has imported what was there before",
            rule="a session that has imported a package keeps the old one",
            remedy=f"restart the session once ({_RESTART[where]}), then run this cell again; it finds everything in place",
        )


def _uv() -> list[str]:
    if found := shutil.which("uv"):
        return [found]
    if importlib.util.find_spec("uv") is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "uv"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise HostedError(
                f"pip install uv: {(done.stderr or done.stdout).strip()}",
                rule="packages are installed with uv",
                remedy="switch Internet on (Kaggle: Settings > Turn on Internet), and run this cell again",
            )
        importlib.invalidate_caches()
    return [sys.executable, "-m", "uv"]


def _run(command: list[str], where: str, kept: dict[str, str]) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _DECIDED_HERE}
    said = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as process:
        for line in process.stdout:
            said.append(line.rstrip())
            if not re.match(r"\s*[-+~] ", line):  # the packages one by one, which are compared below
                print(line.rstrip(), flush=True)
    if process.returncode != 0:
        raise HostedError(
            "the workbench cannot be installed here:\n" + "\n".join(said[-20:]),
            rule=f"{len(kept)} packages that {where} brings stay as they are, torch, numpy, pandas and Jupyter among them",
            remedy="if the lines above say that something could not be fetched: switch Internet on, run this cell again. If "
            "they name a version: choose another of the host's environments (Colab: Runtime > Change runtime type > Runtime "
            "version; Kaggle: Settings > Environment)",
        )
    return said


def _in_use(name: str) -> bool:
    files = importlib.metadata.distribution(name).files or [] if name in _versions() else []
    modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix in (".py", ".so")}
    # A namespace (google, nvidia) has no file, and says nothing about which of its packages was imported.
    return any(getattr(sys.modules.get(module), "__file__", None) for module in modules)
