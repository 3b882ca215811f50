"""A run to prove: the embedded policy on the plain backend, with an adapter that has an effect; and proofs in this process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from made_runs import made_run, sealed

from workbench.exporting import apart
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import fingerprint
from workbench.tasks.loading import load_task

IN_FORCE = {"max_completion_length": 24, "temperature": 1.0}


def proven_run(name: str = "r", backend: str = "transformers", **made: Any) -> RunDirectory:
    """A run as `made_run` makes it, with what a proof asks of its manifest. In 16 bits, unless `precision` says otherwise."""
    run = made_run(name, **{"precision": "float32", **made})
    recipe = run.recipe()
    policy = recipe.policy.model_copy(update={"backend": backend, "load_in_4bit": made.get("precision") == "nf4"})
    recipe.model_copy(update={"policy": policy}).save(run.path / "recipe.yaml")
    sealed(run)
    settings, task = {"asked": {}, "in_force": IN_FORCE}, load_task("arithmetic")
    suite = RewardSuite(task, 2)
    rows = {name: fingerprint(getattr(task, name)) for name in ("rows", "held_out")}
    run.update_manifest(task={"name": task.name, "source": "", **rows}, rewards={"hash": suite.hash, "functions": suite.hashes})
    run.update_manifest(settings=settings, result={"status": "finished", "steps": 1, "minutes": 0.1})
    return run


def in_this_process(work: Any, request: Any, progress: Any) -> Any:
    """`run_apart`, without the other process: what is asked and answered is pickled all the same."""
    found = work(pickle.loads(pickle.dumps(request)), lambda done, total: None)
    return pickle.loads(pickle.dumps(found))


def here(monkeypatch: Any) -> None:
    """From now on proofs are made in this process."""
    monkeypatch.setattr(apart, "run_apart", in_this_process)


def restamp(folder: Path, run: RunDirectory, **artefact: Any) -> Any:
    """A folder that was changed, with a passport of its own: as an exporter that goes wrong would leave it."""
    from workbench.exporting import passport
    from workbench.exporting.artefacts import open_artefact

    made = open_artefact(folder, run)
    passport.stamp(folder, made)
    return made
