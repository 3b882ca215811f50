"""Set-up on Colab and Kaggle: the host's packages stay, missing ones are added, and runs outlive
the session.

Every notebook's first cell calls `begin`, from a copy of the repository or from this file alone,
downloaded: until then only the standard library is available.
"""

from __future__ import annotations

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
from fnmatch import fnmatch
from pathlib import Path

_HERE = Path(__file__).absolute()
REPOSITORY = (
    _HERE.parents[2] if _HERE.with_name("__init__.py").is_file() else Path.cwd() / "grpo-workbench"
)
# The host's front end, notebook server and GPU libraries were built for these, and other notebooks
# count on them.
PROTECTED = (
    "torch", "torchaudio", "torchcodec", "torchvision", "triton", "nvidia-*", "cuda-*", "*-cu1?",
    "jax*", "tensorflow*",
    "keras*", "numpy", "pandas", "scipy", "pillow", "matplotlib*", "scikit-learn", "numba",
    "protobuf", "google-*", "requests",
    "ipython*", "ipykernel", "ipywidgets", "ipyparallel", "jupyter*", "nb*", "notebook*", "pyzmq",
    "tornado", "traitlets",
    "widgetsnbextension",
)  # fmt: skip
_RESTART = {"Colab": "Runtime > Restart session", "Kaggle": "Run > Restart & clear cell outputs"}
_home_set_here = ""
_outdated: list[str] = []  # replaced after this session had imported them


def begin(runs_in: str, address: str) -> None:
    """For the set-up cell: find the repository or clone it from `address`, then
    `set_up(runs_in)`.
    """
    if importlib.util.find_spec("workbench") is None:
        if host() == "Colab":
            _on_colab(runs_in)  # a copy may be in the Drive
        copies = [
            folder for folder in (REPOSITORY, Path(runs_in)) if (folder / "workbench").is_dir()
        ]
        sys.path.insert(0, str(copies[0] if copies else _clone(address)))
    # Not this file's own: the package's remembers what it replaced in this session.
    importlib.import_module("workbench.commands.hosted").set_up(runs_in)


def _clone(address: str) -> Path:
    command = ["git", "clone", "--depth=1", address, str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        rule = "the set-up cell clones the repository where there is no copy of it"
        remedy = f"switch Internet on, or upload a copy of the repository as {REPOSITORY}"
        raise RuntimeError(f"{address}: {done.stderr}\n  rule:   {rule}\n  remedy: {remedy}")
    return REPOSITORY


def _error(value: str, rule: str, remedy: str) -> Exception:
    from workbench.base.errors import HostedError

    return HostedError(value, rule=rule, remedy=remedy)


def host() -> str:
    """ "Colab", "Kaggle", or "" anywhere else."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # its image is made from Colab's, variables included
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else ""


def set_up(runs_in: str = "/content/drive/MyDrive/grpo-workbench") -> None:
    """Make this notebook's host ready for the workbench; do nothing where it is neither Colab nor
    Kaggle, or is ready.

    Args:
        runs_in: Colab: the folder for `tasks/` and `runs/`, with its full path. In a Drive
            (".../MyDrive/...") it outlives the runtime, and the Drive is mounted first; "": beside
            the workbench. Kaggle keeps only /kaggle/working.

    Raises:
        HostedError: if something cannot be installed beside the host's packages, or was replaced
            while in use.
    """
    where = host()
    began = time.monotonic()
    if not where:
        return
    _one_gpu(where)
    _choose_home(where, runs_in)
    if not in_place():
        _install(where)
    if _outdated:
        raise _error(
            f"{', '.join(_outdated)}: replaced, and this session has imported what was there"
            " before",
            "a session keeps what it has imported",
            f"restart it once ({_RESTART[where]}), then run this cell again; it finds everything in"
            " place",
        )
    print(f"ready after {time.monotonic() - began:.0f} s")


def _one_gpu(where: str) -> None:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = (
        subprocess.run(query, capture_output=True, text=True) if shutil.which(query[0]) else None
    )
    names = listed.stdout.splitlines() if listed and listed.returncode == 0 else []
    device = " and ".join(names) or "no GPU: enough for the embedded policy"
    print(f"{where}, Python {sys.version_info.major}.{sys.version_info.minor}, {device}")
    if len(names) < 2 or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        raise _error(
            f"{len(names)} GPUs, and this session uses them",
            "a run has one GPU, chosen before torch starts",
            f"restart the session ({_RESTART[where]}), and run this cell first",
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    print("a run has one GPU: CUDA_VISIBLE_DEVICES=0")


def _choose_home(where: str, runs_in: str) -> None:
    global _home_set_here
    home, note = os.environ.get("WORKBENCH_HOME", ""), "WORKBENCH_HOME"
    if home == _home_set_here:
        home, note = (
            ("/kaggle/working", "kept by Save Version") if where == "Kaggle" else _on_colab(runs_in)
        )
        os.environ["WORKBENCH_HOME"] = _home_set_here = home
    print(f"tasks and runs: {home} ({note})")


def _on_colab(runs_in: str) -> tuple[str, str]:
    here = str(REPOSITORY if (REPOSITORY / "pyproject.toml").is_file() else Path.cwd())
    if not (in_drive := re.match("(.+)/(MyDrive|Shareddrives)(/|$)", runs_in)):
        return runs_in or here, "lost with this runtime"
    try:
        if not Path(in_drive[1], "MyDrive").is_dir():
            from google.colab import drive  # ty: ignore[import-not-found]

            drive.mount(in_drive[1])
        Path(runs_in).mkdir(parents=True, exist_ok=True)
    except Exception as error:  # declined, no Drive on this account, a runtime that has none
        print(
            f"Drive is not mounted: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        )
        return here, "lost with this runtime; run this cell again to choose Drive"
    return runs_in, "in your Drive"


# -- packages
# --------------------------------------------------------------------------------------------------


def in_place() -> bool:
    """Whether this copy of the workbench and its requirements are installed."""
    project = REPOSITORY / "pyproject.toml"
    if not project.is_file():  # installed as a package, with what it needs
        return True
    try:
        from packaging.requirements import Requirement

        source = (
            importlib.metadata.distribution("grpo-workbench").read_text("direct_url.json") or "{}"
        )
        if json.loads(source).get("url") != REPOSITORY.as_uri():
            return False
        project = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extra = project["optional-dependencies"]["unsloth"]
        needed = map(Requirement, project["dependencies"] + extra)
        return all(
            each.specifier.contains(importlib.metadata.version(each.name), prereleases=True)
            for each in needed
            if each.marker is None or each.marker.evaluate()
        )
    except ImportError:  # a package that is not there is one, too
        return False


def _install(where: str) -> None:
    before = _versions()
    kept = [
        f"{name}=={version}"
        for name, version in before.items()
        if any(fnmatch(name, each) for each in PROTECTED)
    ]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    overrides = project.get("tool", {}).get("uv", {}).get("override-dependencies", [])
    with tempfile.TemporaryDirectory() as folder:
        # No configuration: it would obey the pyproject.toml of whatever folder the notebook is in.
        command = [*_uv(), "pip", "install", "--python", sys.executable]
        command += ["--break-system-packages", "--no-config"]
        for option, lines in (("--constraint", kept), ("--override", overrides)):
            Path(folder, option).write_text("\n".join(lines))
            command += [option, str(Path(folder, option))]
        rule = f"what {where} brings for the GPU, for numbers and for notebooks stays as it is"
        _run([*command, "--editable", f"{REPOSITORY}[unsloth]"], rule=rule)
    importlib.invalidate_caches()
    after = _versions()
    replaced = [name for name, version in sorted(before.items()) if after.get(name) != version]
    print(
        f"packages: {len(after.keys() - before.keys())} added, {len(replaced) or 'none'} replaced"
    )
    for name in replaced:
        print(f"  {name} {before[name]} -> {after.get(name, 'removed')}")
    _outdated.extend(name for name in replaced if name in after and _imported(name))


def _versions() -> dict[str, str]:
    named = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    # Of two the first on the path is the one that is imported.
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in reversed(named)
        if name and version
    }


def _imported(name: str) -> bool:
    files = importlib.metadata.files(name) or []
    modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix in (".py", ".so")}
    # A namespace (google, nvidia) has no file, and says nothing about which of its packages was
    # imported.
    return any(getattr(sys.modules.get(module), "__file__", None) for module in modules)


def _uv() -> list[str]:
    if program := shutil.which("uv"):
        return [program]
    if importlib.util.find_spec("uv") is None:
        _run(
            [sys.executable, "-m", "pip", "install", "--quiet", "uv"],
            rule="packages are installed with uv",
        )
        importlib.invalidate_caches()
    return [sys.executable, "-m", "uv"]


def _run(command: list[str], rule: str) -> None:
    # Colab has had UV_BUILD_CONSTRAINT name a file that was not there (colabtools#5237); the
    # command has the other constraints.
    environment = dict(os.environ)
    environment.pop("UV_BUILD_CONSTRAINT", None)
    printed: list[str] = []
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    ) as process:
        for line in process.stdout or ():
            printed.append(line.rstrip())
            # Not the packages one by one: they are compared when it is done.
            if not line.startswith((" - ", " + ", " ~ ")):
                print(line.rstrip(), flush=True)
    if process.returncode != 0:
        value = "\n".join(["the workbench cannot be installed here:", *printed[-20:]])
        remedy = (
            "if a download failed, switch Internet on (Kaggle: Session options) and run this cell"
            " again; if two versions clash, choose another environment (Colab: Runtime > Change"
            " runtime type > Runtime version; Kaggle: Session options > Environment)"
        )
        raise _error(value, rule, remedy)
