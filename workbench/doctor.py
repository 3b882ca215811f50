"""What works on this machine, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from typing import Any

from workbench.run.directory import versions

_HARMLESS = (
    "Harmless, where TRL is imported before the workbench: red lines of torch/utils/_pytree.py on Enum subclasses, and that\n"
    "gemm_4bit_forward could not be loaded from kernels-community, an optional package."
)

Found = tuple[bool, str, str]  # whether it works, what was found, and what to do if it does not


def examine() -> dict[str, Any]:
    """Versions and findings; a `needed` one that fails makes `workbench doctor` exit with 1.

    Loads the embedded policy in 4 bits, so it takes about half a minute.
    """
    findings = []
    for name, probe in PROBES.items():
        try:
            works, detail, remedy = probe()
        except Exception as error:  # the one thing that a doctor must not do is fall over
            remedy = getattr(error, "remedy", "install what it names again, at a version that pyproject.toml takes")
            works, detail = False, f"{type(error).__name__}: {error}".splitlines()[0]
        findings.append({"name": name, "works": works, "detail": detail, "remedy": remedy, "needed": probe is _policy})
    return {"versions": versions(), "findings": findings}


def tables(found: dict[str, Any]) -> str:
    """What `examine` found, for people."""
    from workbench.views.tables import Table

    versions = Table(["library", "version"], [[key, value or "not installed"] for key, value in found["versions"].items()])
    rows = [[each["name"], "yes" if each["works"] else "no", each["detail"], each["remedy"]] for each in found["findings"]]
    return f"{versions}\n\n{Table(['', 'works', 'found', 'what to do'], rows)}\n\n{_HARMLESS}"


def _policy() -> Found:
    from workbench.training.policy import load_policy
    from workbench.training.sampling import sample

    policy = load_policy("tiny")
    [[completion]] = sample(policy, [[{"role": "user", "content": "What is 15 + 27?"}]], max_completion_length=8)
    layers = f"{policy.linear4bit} Linear4bit layers through {policy.backend}"
    return True, f"{layers}; {len(completion.ids)} tokens generated", ""


def _device() -> Found:
    import torch

    if not torch.cuda.is_available():
        return False, "none: everything runs on the CPU", "for models beyond 100 M parameters, use a machine with a GPU"
    properties = torch.cuda.get_device_properties(0)
    return True, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB", ""


def _bf16() -> Found:
    from workbench.training.precision import native_bf16

    detail = "not native here; float32 (CPU) or float16 (GPU) is used instead"
    return (True, "native", "") if native_bf16() else (False, detail, "nothing to do: it only costs speed")


def _vllm() -> Found:
    import torch

    from workbench.training.settings.device import PUBLISHED, missing

    brings = f"policy.fast_inference: true generates with it; {PUBLISHED}"
    if why := missing(imports=True):
        return False, why, f"optional, for a GPU: {brings}"
    imports = f"{importlib.metadata.version('vllm')} imports"
    if not torch.cuda.is_available():
        return False, f"{imports}, and there is no GPU for it", f"nothing to do: {brings}"
    return True, f"{imports}; {brings}", ""


def _gguf() -> Found:
    from workbench.exporting import gguf

    if importlib.util.find_spec("llama_cpp") is None:
        return False, "llama-cpp-python is not installed", f"optional, for the formats gguf_…: {gguf.INSTALL}"
    library = f"llama-cpp-python {gguf.llama_cpp().__version__} loads"
    found = gguf.converter()
    return True, f"{library}; converter: {found or 'downloaded with the first export'}", ""


def _jupyter() -> Found:
    if importlib.util.find_spec("jupyterlab") is None:
        return False, "not installed", "only `workbench lab` needs it: uv pip install jupyterlab"
    command = [sys.executable, "-m", "jupyterlab", "--version"]
    return True, subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip(), ""


def _chromium() -> Found:
    found = find_chromium()
    return bool(found), found or "not found", "" if found else "only the browser test needs it: install chromium"


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _disk() -> Found:
    from workbench.workspace import workspace

    free = shutil.disk_usage(workspace()).free / 2**30
    return free > 2, f"{free:.0f} GiB free", "" if free > 2 else "make room: a merged 1.5 B model takes 3 GiB"


PROBES = {
    "4-bit policy": _policy, "GPU": _device, "bfloat16": _bf16, "vLLM": _vllm,
    "widgets": lambda: (True, f"ipywidgets {importlib.import_module('ipywidgets').__version__} imports", ""),
    "GGUF": _gguf, "JupyterLab": _jupyter, "Chromium": _chromium, "disk": _disk,
}  # fmt: skip
