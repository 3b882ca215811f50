"""Artefacts of runs that never trained: a record, an adapter of a few bytes, a folder with a card and a passport."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from running import HOSTILE, Running

from workbench.base.workspace import resolve
from workbench.exporting.artefacts import Artefact
from workbench.exporting.passport import stamp
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.tiny import MODEL_DIR

EVALUATION = {
    "before": {"correct": 0.30125, "correct_lenient": 0.35, "format": 0.5, "finished": 1.0, "reward": 2.4},
    "after": {"correct": 0.9175, "correct_lenient": 0.92, "format": 0.97, "finished": 1.0, "reward": 4.5},
    "gain": {"correct": 0.61625, "low": 0.578, "high": 0.654},
    "prompts": 200, "samples": 4, "right_by": "correctness_reward",
}  # fmt: skip
VERSIONS = {"python": "3.11.7", "trl": "1.14.2", "unsloth": "2026.10.9", "vllm": None, "cpu": "A CPU"}


@functools.cache
def _recorded(steps: int) -> Path:
    # Its reward functions need a process of their own, which takes seconds to begin.
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("WORKBENCH_HOME", tempfile.mkdtemp(prefix="workbench-"))
        running = Running("recorded", steps)
        for _ in range(steps):
            running.step()
        return running.finish().path


def made_run(name: str = "r", recipe: dict[str, Any] | None = None, steps: int = 3, **manifest: Any) -> RunDirectory:
    """A finished run with an adapter of 20 bytes; `recipe` over the usual one, `manifest` over what it found."""
    run = RunDirectory(resolve("runs") / name)
    shutil.copytree(_recorded(steps), run.path)
    asked = Recipe.of({"run_name": name, "grpo": {"max_steps": steps}, **(recipe or {})})
    asked.save(run.path / "recipe.yaml")
    found = {
        "id": f"id of {name}", "created": "2026-11-23T05:24:46+00:00", "versions": VERSIONS, "template": "t" * 16,
        "policy": {"source": str(MODEL_DIR), "device": "the CPU (1 threads)", "backend": "Unsloth", "backend_name": "unsloth",
                   "precision": "nf4"},
        "task": {"name": "doubles", "source": "", "rows": "a" * 16, "held_out": "b" * 16, "card": None},
        "prompts": {"used": 8},
    }  # fmt: skip
    run.update_manifest(**found | manifest)
    run.final.mkdir(parents=True)
    (run.final / "adapter_config.json").write_text("{}")
    (run.final / "adapter_model.safetensors").write_bytes(bytes(range(20)))
    return run


def made_artefact(run: RunDirectory, format: str = "merged_16bit", base: str = str(MODEL_DIR), **more: Any) -> Artefact:
    """An artefact of a few bytes, as `export` leaves one."""
    folder = run.export / format
    folder.mkdir(parents=True)
    artefact = Artefact(folder, format, base, run=run, **more)
    (folder / "config.json").write_text(json.dumps({"_name_or_path": base, "model_type": "llama"}))
    if format == "adapter":
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 8}))
    (folder / ("model.gguf" if format.startswith("gguf") else "model.safetensors")).write_bytes(bytes(range(256)))
    (folder / "chat_template.jinja").write_text(HOSTILE)
    stamp(folder, artefact)
    return artefact


def leave(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, by name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
