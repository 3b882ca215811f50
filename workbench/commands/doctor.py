"""What works on this machine, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from workbench.base.extras import INSTALL_LAB, INSTALL_UNSLOTH, explained, installed
from workbench.base.kinds import Fields
from workbench.run.machine import versions

_HARMLESS = (
    "Harmless, where TRL is imported before the workbench: red lines of torch/utils/_pytree.py on"
    " Enum subclasses, and that\ngemm_4bit_forward could not be loaded from kernels-community, an"
    " optional package."
)


class MachineFinding(NamedTuple):
    """Whether something works here, the evidence, and what to do if it does not."""

    works: bool
    detail: str
    remedy: str = ""


def examine_machine() -> Fields:
    """Versions and findings; a `needed` one that fails makes `workbench doctor` exit with 1.

    Loads the embedded policy in 4 bits, so it takes about half a minute.
    """
    findings = []
    for name, probe in PROBES.items():
        try:
            finding = probe()
        except Exception as met:  # the one thing that a doctor must not do is fall over
            error = explained(met)
            detail = f"{type(error).__name__}: {error}".splitlines()[0]
            again = "install what it names again, at a version that pyproject.toml takes"
            finding = MachineFinding(False, detail, getattr(error, "remedy", again))
        findings.append({"name": name, **finding._asdict(), "needed": probe is _policy})
    return {"versions": versions(), "findings": findings}


def tables(report: Fields) -> str:
    """The findings of `examine`, for people."""
    from workbench.views.tables import Table

    installed = [
        [name, version or ("unknown" if name in ("cpu", "commit") else "not installed")]
        for name, version in report["versions"].items()
    ]
    rows = [
        [one["name"], "yes" if one["works"] else "no", one["detail"], one["remedy"]]
        for one in report["findings"]
    ]
    works = Table(["", "works", "found", "what to do"], rows)
    return f"{Table(['library', 'version'], installed)}\n\n{works}\n\n{_HARMLESS}"


def _policy() -> MachineFinding:
    from workbench.training.policy import load_policy
    from workbench.training.sampling import sample

    policy = load_policy("tiny")
    [[completion]] = sample(
        policy, [[{"role": "user", "content": "What is 15 + 27?"}]], max_completion_length=8
    )
    layers = f"{policy.linear4bit} Linear4bit layers through {policy.backend}"
    return MachineFinding(True, f"{layers}; {len(completion.ids)} tokens generated")


def _unsloth() -> MachineFinding:
    if installed("unsloth"):
        return MachineFinding(True, importlib.metadata.version("unsloth"))
    instead = "not installed: the default backend is plain transformers"
    return MachineFinding(False, instead, f"optional: {INSTALL_UNSLOTH}")


def _device() -> MachineFinding:
    import torch

    if not torch.cuda.is_available():
        remedy = "for models beyond 100 M parameters, use a machine with a GPU"
        return MachineFinding(False, "none: everything runs on the CPU", remedy)
    properties = torch.cuda.get_device_properties(0)
    return MachineFinding(True, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")


def _bf16() -> MachineFinding:
    from workbench.training.plan.precision import native_bf16

    if native_bf16():
        return MachineFinding(True, "native")
    detail = "not native here; float32 (CPU) or float16 (GPU) is used instead"
    return MachineFinding(False, detail, "nothing to do: it only costs speed")


def _vllm() -> MachineFinding:
    import torch

    from workbench.training.plan.settings.device import PUBLISHED, missing

    brings = f"policy.fast_inference: true generates with it; {PUBLISHED}"
    if why := missing(imports=True):
        return MachineFinding(False, why, f"optional, for a GPU: {brings}")
    imports = f"{importlib.metadata.version('vllm')} imports"
    if not torch.cuda.is_available():
        return MachineFinding(
            False, f"{imports}, and there is no GPU for it", f"nothing to do: {brings}"
        )
    return MachineFinding(True, f"{imports}; {brings}")


def _widgets() -> MachineFinding:
    return MachineFinding(
        True, f"ipywidgets {importlib.import_module('ipywidgets').__version__} imports"
    )


def _gguf() -> MachineFinding:
    from workbench.exporting import gguf

    if importlib.util.find_spec("llama_cpp") is None:
        return MachineFinding(
            False,
            "llama-cpp-python is not installed",
            f"optional, for the formats gguf_…: {gguf.INSTALL}",
        )
    library = f"llama-cpp-python {gguf.llama_cpp().__version__} loads"
    return MachineFinding(
        True, f"{library}; converter: {gguf.converter() or 'downloaded with the first export'}"
    )


def _jupyter() -> MachineFinding:
    try:
        return MachineFinding(True, importlib.metadata.version("jupyterlab"))
    except importlib.metadata.PackageNotFoundError:
        return MachineFinding(
            False, "not installed", f"only `workbench lab` and `lesson` need it: {INSTALL_LAB}"
        )


def _disk() -> MachineFinding:
    from workbench.base.workspace import workspace

    # WORKBENCH_HOME may name a folder that the first run makes.
    place = workspace()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    free_gb = shutil.disk_usage(there).free / 2**30
    remedy = "" if free_gb > 2 else "make room: a merged 1.5 B model takes 3 GiB"
    return MachineFinding(free_gb > 2, f"{free_gb:.0f} GiB free", remedy)


def _home() -> MachineFinding:
    from workbench.base.workspace import home_folder

    home = home_folder()
    stays = not home.name.startswith("home-") and os.access(home, os.W_OK)
    remedy = "" if stays else "set HOME to a folder that can be written and stays: caches lie there"
    return MachineFinding(stays, str(home), remedy)


PROBES: dict[str, Callable[[], MachineFinding]] = {
    "4-bit policy": _policy,
    "Unsloth": _unsloth,
    "GPU": _device,
    "bfloat16": _bf16,
    "vLLM": _vllm,
    "widgets": _widgets,
    "GGUF": _gguf,
    "JupyterLab": _jupyter,
    "disk": _disk,
    "home folder": _home,
}
