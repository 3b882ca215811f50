"""Set-up on Colab and Kaggle: what the host brings stays, what is missing is added, and runs outlive the session.

Every notebook's first cell calls `set_up`, when nothing else is there yet: only the standard library is imported here.
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

from workbench.errors import WorkbenchError

REPOSITORY = Path(__file__).parents[1]
# The host's front end, notebook server and GPU libraries were built for these, and other notebooks count on them.
PROTECTED = (
    "torch", "torchaudio", "torchcodec", "torchvision", "triton", "nvidia-*", "cuda-*", "*-cu1?", "jax*", "tensorflow*",
    "keras*", "numpy", "pandas", "scipy", "pillow", "matplotlib*", "scikit-learn", "numba", "protobuf", "google-*", "requests",
    "ipython*", "ipykernel", "ipywidgets", "ipyparallel", "jupyter*", "nb*", "notebook*", "pyzmq", "tornado", "traitlets",
    "widgetsnbextension",
)  # fmt: skip
_RESTART = {"Colab": "Runtime > Restart session", "Kaggle": "Run > Restart & clear cell outputs"}
_home_set_here = ""
_outdated: list[str] = []  # replaced after this session had imported them


class HostedError(WorkbenchError, RuntimeError):
    """The notebook's host could not be set up."""


def host() -> str:
    """ "Colab", "Kaggle", or "" anywhere else."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # its image is made from Colab's, variables included
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else ""


def set_up(runs_in: str = "/content/drive/MyDrive/grpo-workbench") -> None:
    """Make this notebook's host ready for the workbench; do nothing where it is neither Colab nor Kaggle, or is ready.

    Args:
        runs_in: Colab: the folder for `tasks/` and `runs/`, with its full path. In a Drive (".../MyDrive/...") it outlives
            the runtime, and the Drive is mounted first; "": beside the workbench. Kaggle keeps only /kaggle/working.

    Raises:
        HostedError: if something cannot be installed beside what the host brings, or was replaced while it was in use.
    """
    where, began = host(), time.monotonic()
    if not where:
        return
    _one_gpu(where)
    _choose_home(where, runs_in)
    if not in_place():
        _install(where)
    if _outdated:
        value = f"{', '.join(_outdated)}: replaced, and this session has imported what was there before"
        remedy = f"restart it once ({_RESTART[where]}), then run this cell again; it finds everything in place"
        raise HostedError(value, rule="a session keeps what it has imported", remedy=remedy)
    print(f"ready after {time.monotonic() - began:.0f} s")


def _one_gpu(where: str) -> None:
    query, names = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], []
    if shutil.which(query[0]) and (asked := subprocess.run(query, capture_output=True, text=True)).returncode == 0:
        names = asked.stdout.split("\n")[:-1]
    device = " and ".join(names) or "no GPU: enough for the embedded policy"
    print(f"{where}, Python {sys.version_info.major}.{sys.version_info.minor}, {device}")
    if len(names) < 2 or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        value, rule = f"{len(names)} GPUs, and this session uses them", "a run has one GPU, chosen before torch starts"
        raise HostedError(value, rule=rule, remedy=f"restart the session ({_RESTART[where]}), and run this cell first")
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    print("a run has one GPU: CUDA_VISIBLE_DEVICES=0")


def _choose_home(where: str, runs_in: str) -> None:
    global _home_set_here
    home, note = os.environ.get("WORKBENCH_HOME", ""), "WORKBENCH_HOME"
    if home == _home_set_here:
        home, note = ("/kaggle/working", "kept by Save Version") if where == "Kaggle" else _on_colab(runs_in)
        os.environ["WORKBENCH_HOME"] = _home_set_here = home
    print(f"tasks and runs: {home} ({note})")


def _on_colab(runs_in: str) -> tuple[str, str]:
    here = str(REPOSITORY if (REPOSITORY / "pyproject.toml").is_file() else Path.cwd())
    if not (in_drive := re.match("(.+)/(MyDrive|Shareddrives)(/|$)", runs_in)):
        return runs_in or here, "lost with this runtime"
    try:
        if not Path(in_drive[1], "MyDrive").is_dir():
            from google.colab import drive

            drive.mount(in_drive[1])
        Path(runs_in).mkdir(parents=True, exist_ok=True)
    except Exception as error:  # declined, no Drive on this account, a runtime that has none
        print(f"Drive is not mounted: {str(error).strip().partition(chr(10))[0] or type(error).__name__}")
        return here, "lost with this runtime; run this cell again to choose Drive"
    return runs_in, "in your Drive"


# -- packages --------------------------------------------------------------------------------------------------------------


def in_place() -> bool:
    """Whether this copy of the workbench, and what it needs, are installed."""
    project = REPOSITORY / "pyproject.toml"
    if not project.is_file():  # installed as a package, with what it needs
        return True
    try:
        from packaging.requirements import Requirement

        source = importlib.metadata.distribution("grpo-workbench").read_text("direct_url.json") or "{}"
        wanted = map(Requirement, tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"])
        return json.loads(source).get("url") == REPOSITORY.as_uri() and all(
            each.specifier.contains(importlib.metadata.version(each.name), prereleases=True)
            for each in wanted
            if each.marker is None or each.marker.evaluate()
        )
    except ImportError:  # a package that is not there is one, too
        return False


def _install(where: str) -> None:
    before = _versions()
    kept = [f"{name}=={version}" for name, version in before.items() if any(fnmatch(name, each) for each in PROTECTED)]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    overrides = project.get("tool", {}).get("uv", {}).get("override-dependencies", [])
    with tempfile.TemporaryDirectory() as folder:
        # No configuration: it would obey the pyproject.toml of whatever folder the notebook is in.
        command = [*_uv(), "pip", "install", "--python", sys.executable, "--break-system-packages", "--no-config"]
        for option, lines in (("--constraint", kept), ("--override", overrides)):
            Path(folder, option).write_text("\n".join(lines))
            command += [option, str(Path(folder, option))]
        rule = f"what {where} brings for the GPU, for numbers and for notebooks stays as it is"
        _run([*command, "--editable", str(REPOSITORY)], rule=rule)
    importlib.invalidate_caches()
    after = _versions()
    replaced = [name for name, version in sorted(before.items()) if after.get(name) != version]
    print(f"packages: {len(after.keys() - before.keys())} added, {len(replaced) or 'none'} replaced")
    for name in replaced:
        print(f"  {name} {before[name]} -> {after.get(name, 'removed')}")
    _outdated.extend(name for name in replaced if name in after and _imported(name))


def _versions() -> dict[str, str]:
    found = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    # Of two the first on the path is the one that is imported.
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in reversed(found) if name and version}


def _imported(name: str) -> bool:
    files = importlib.metadata.files(name) or []
    modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix in (".py", ".so")}
    # A namespace (google, nvidia) has no file, and says nothing about which of its packages was imported.
    return any(getattr(sys.modules.get(module), "__file__", None) for module in modules)


def _uv() -> list[str]:
    if found := shutil.which("uv"):
        return [found]
    if importlib.util.find_spec("uv") is None:
        _run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], rule="packages are installed with uv")
        importlib.invalidate_caches()
    return [sys.executable, "-m", "uv"]


def _run(command: list[str], rule: str) -> None:
    # Colab has had it name a file that was not there (colabtools#5237); the other constraints are in the command.
    environment, said = {name: value for name, value in os.environ.items() if name != "UV_BUILD_CONSTRAINT"}, []
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "encoding": "utf-8"}
    with subprocess.Popen(command, env=environment, **pipe) as process:
        for line in process.stdout:
            said.append(line.rstrip())
            # Not the packages one by one: they are compared when it is done.
            if not line.startswith((" - ", " + ", " ~ ")):
                print(line.rstrip(), flush=True)
    if process.returncode != 0:
        value = "\n".join(["the workbench cannot be installed here:", *said[-20:]])
        remedy = (
            "if a download failed, switch Internet on (Kaggle: Session options) and run this cell again; if two versions clash, "
            "choose another environment (Colab: Runtime > Change runtime type > Runtime version; Kaggle: Session options > "
            "Environment)"
        )
        raise HostedError(value, rule=rule, remedy=remedy)
