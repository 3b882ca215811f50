"""What works on this machine, and what to do about what does not."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.run.versions import versions


class Finding(NamedTuple):
    """One thing that was tried. `needed` ones that fail make `workbench doctor` exit with 1."""

    name: str
    works: bool
    detail: str
    remedy: str = ""
    needed: bool = False


def examine() -> dict[str, Any]:
    """Versions and findings. Loads the embedded policy in 4 bits, so it takes about half a minute."""
    probes = (_policy, _device, _bf16, _vllm, _widgets, _jupyter, _chromium, _disk)
    return {"versions": versions(), "findings": [_try(probe)._asdict() for probe in probes]}


def tables(found: dict[str, Any]) -> str:
    """What `examine` found, for people."""
    from workbench.views.tables import Table

    versions = Table(["library", "version"], [[key, value or "not installed"] for key, value in found["versions"].items()])
    rows = [
        [finding["name"], "yes" if finding["works"] else "no", finding["detail"], finding["remedy"]]
        for finding in found["findings"]
    ]
    return f"{versions}\n\n{Table(['', 'works', 'found', 'what to do'], rows)}"


def _try(probe: Callable[[], Finding]) -> Finding:
    # A probe that breaks is a finding too: the one thing that a doctor must not do is fall over.
    try:
        return probe()
    except Exception as error:
        remedy = getattr(error, "remedy", "install what it names again, at a version that pyproject.toml takes")
        name = _NAMES[probe.__name__]
        return Finding(name, False, f"{type(error).__name__}: {error}".splitlines()[0], remedy, needed=probe is _policy)


_NAMES = {
    "_policy": "4-bit policy", "_device": "GPU", "_bf16": "bfloat16", "_vllm": "vLLM", "_widgets": "widgets",
    "_jupyter": "JupyterLab", "_chromium": "Chromium", "_disk": "disk",
}  # fmt: skip


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(
            "GPU",
            False,
            "none: everything runs on the CPU",
            "for models beyond 100 M parameters, use a machine with a GPU",
        )
    properties = torch.cuda.get_device_properties(0)
    return Finding("GPU", True, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")


def _policy() -> Finding:
    from workbench.training.policy import load_policy
    from workbench.training.sampling import sample

    policy = load_policy("tiny")
    [[completion]] = sample(policy, [[{"role": "user", "content": "What is 15 + 27?"}]], max_completion_length=8)
    detail = f"{policy.linear4bit} Linear4bit layers through {policy.backend}; {len(completion.ids)} tokens generated"
    return Finding("4-bit policy", True, detail, needed=True)


def _bf16() -> Finding:
    from workbench.training.precision import native_bf16

    native = native_bf16()
    detail = "native" if native else "not native here; float32 (CPU) or float16 (GPU) is used instead"
    return Finding("bfloat16", native, detail, "" if native else "nothing to do: it only costs speed")


def _vllm() -> Finding:
    import torch

    from workbench.training.fast_inference import PUBLISHED, missing

    brings = f"policy.fast_inference: true generates with it; {PUBLISHED}"
    why = missing(imports=True)
    if why:
        return Finding("vLLM", False, why, f"optional, for a GPU: {brings}")
    version = importlib.metadata.version("vllm")
    if not torch.cuda.is_available():
        return Finding("vLLM", False, f"{version} imports, and there is no GPU for it", f"nothing to do: {brings}")
    return Finding("vLLM", True, f"{version} imports; {brings}")


def _widgets() -> Finding:
    ipywidgets = importlib.import_module("ipywidgets")
    return Finding("widgets", True, f"ipywidgets {ipywidgets.__version__} imports")


def _jupyter() -> Finding:
    if importlib.util.find_spec("jupyterlab") is None:
        return Finding("JupyterLab", False, "not installed", "only `workbench lab` needs it: uv pip install jupyterlab")
    command = [sys.executable, "-m", "jupyterlab", "--version"]
    version = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    return Finding("JupyterLab", True, version)


def _chromium() -> Finding:
    found = find_chromium()
    return Finding(
        "Chromium",
        found is not None,
        found or "not found",
        "" if found else "only the browser test needs it: install chromium",
    )


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _disk() -> Finding:
    from workbench.workspace import workspace

    free = shutil.disk_usage(workspace()).free / 2**30
    return Finding("disk", free > 2, f"{free:.0f} GiB free", "" if free > 2 else "make room: a merged 1.5 B model takes 3 GiB")
