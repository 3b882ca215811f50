"""Runs that were made without the workbench: what TRL itself leaves becomes a run directory, so that every view reads it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.run.directory import RunDirectory
from workbench.run.metrics import function_names
from workbench.run.rollouts import columns_of, write_part
from workbench.task import prompt_key
from workbench.workspace import resolve, shown

_OTHER = ("step", "prompt", "completion", "advantage")  # columns that are no reward function's
_FILES = "completions_*.parquet"


def read_trl(
    output_dir: str | Path, name: str = "", *, weights: Mapping[str, float] | None = None, right_by: str = ""
) -> RunDirectory:
    """Make a run directory of what TRL's own trainer left: `trainer_state.json` and, with `log_completions`, its Parquet files.

    >>> # run = wb.inspection.read_trl("outputs/grpo")
    >>> # wb.by_step(run), wb.inspection.failures(run), wb.inspection.write_report(run)

    TRL keeps the last batch of each logging step, and neither token counts nor dataset columns: what needs them is missing.

    Args:
        output_dir: the trainer's.
        name: of the run, under `runs`; empty: the folder's.
        weights: the `reward_weights` it had, by function; those not given count once.
        right_by: the function whose score above 0 means right; empty: the first.

    Raises:
        RunError: if there are no completions in it, or `right_by` or a weight names no function of them.
    """
    import pandas

    folder = resolve(output_dir)
    files = sorted(folder.glob(f"completions/{_FILES}")) or sorted(folder.glob(_FILES))
    if not files:
        remedy = "train with log_completions=True; or, from now on, `wb.attach(trainer)`"
        raise RunError(f"{shown(folder)}: no completions/{_FILES}", rule="TRL writes one at each logging step", remedy=remedy)
    frames = [frame for file in files if len(frame := pandas.read_parquet(file))]
    if not frames:
        raise RunError(
            f"{shown(folder)}: no completions in {len(files)} files", rule="a step has completions", remedy="look at them"
        )
    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    rows = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"] if states else []
    first = frames[0]
    numeric = [column for column in first.columns if column not in _OTHER and pandas.api.types.is_numeric_dtype(first[column])]
    logged = set(function_names(key for row in rows for key in row))
    names = [column for column in numeric if column in logged] or numeric
    for asked in (*(weights or {}), *filter(None, [right_by])):
        if asked not in names:
            raise RunError(f"{asked!r}: no function of this run", rule=f"it has {', '.join(names)}", remedy="name one of these")
    weighted = {column: float((weights or {}).get(column, 1.0)) for column in names}
    sizes = [len(list(own)) for frame in frames for _, own in itertools.groupby(frame["prompt"])]
    size = int(np.bincount(sizes).argmax())
    manifest: dict[str, Any] = {"attached": True, "rewards": {"weights": weighted}, "task": {"right_by": right_by or names[0]}}
    manifest["settings"] = {"asked": {}, "in_force": {"num_generations": size}}
    run = RunDirectory.create(name or folder.name, Recipe(run_name=name or folder.name), manifest)
    for frame in frames:
        step, prompts = int(frame["step"].iloc[0]), frame["prompt"].tolist()
        scores, right = frame[names].to_numpy(dtype=float), frame[right_by or names[0]].to_numpy(dtype=float) > 0
        batch = batch_of(names, [*weighted.values()], scores, frame["completion"].tolist(), right, size, prompts=prompts)
        groups = batch.groups._replace(advantages=frame["advantage"].to_numpy(dtype=float))
        ids = {"prompt_id": [prompt_key(prompt)[:12] for prompt in prompts]}
        columns = columns_of(dataclasses.replace(batch, step=step, groups=groups, columns=ids))
        write_part(run.rollouts, step, columns | {"length_tokens": None}, names)  # TRL does not keep it
    for row in rows:
        run.log_metrics(row["step"], {key: value for key, value in row.items() if key != "step"})
    run.update_manifest(result={"status": "finished", "steps": int(frames[-1]["step"].iloc[0]), "minutes": 0.0})
    run.release()
    return run
