"""Records without a run: TRL's own output, or loose parts of ours, become a run directory that
every view can read.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from workbench.errors import RunError
from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.run.batch import NO_SPREAD
from workbench.run.directory import RunDirectory
from workbench.run.metrics import GROUP_STD, MEAN_LENGTH, REWARD, ZERO_STD, function_names
from workbench.run.parts import parts
from workbench.run.rollouts import columns_of, read_part, write_part
from workbench.task import prompt_key, right_of
from workbench.workspace import resolve, shown

_OTHER = ("step", "prompt", "completion", "advantage")  # columns that are no reward function's
_FILES = "completions_*.parquet"
_SOME = "a step has completions"


def read_record(
    folder: str | Path,
    name: str = "",
    *,
    weights: Mapping[str, float] | None = None,
    right_by: str | tuple[str, float] = "",
) -> RunDirectory:
    """Make a run directory from the output of TRL's own trainer, or from parts of a record whose
    run is missing.

    >>> # run = wb.inspection.read_record("outputs/grpo")
    >>> # wb.by_step(run), wb.inspection.failures(run), wb.inspection.write_report(run)

    From TRL: `trainer_state.json` and, with `log_completions`, Parquet files. It keeps the last
    batch of each logging step, and neither token counts nor dataset columns: what needs them is
    missing. From the workbench: the `step-*.parquet` of a run's `rollouts`; the curves are drawn
    from them.

    Args:
        folder: the trainer's `output_dir`, or that of the parts.
        name: of the run, under `runs`; empty: the folder's.
        weights: the `reward_weights` that TRL had, by function; those not given count once. Parts
            hold theirs.
        right_by: as in a `Task`; empty: not stated, so the first function is taken. Parts hold what
            was right.

    Raises:
        RunError: if it holds no completions, if `right_by` or a weight names no function of them or
            is given for parts, or if it is a run.
    """
    import pandas

    folder = resolve(folder)
    if (folder / "recipe.yaml").is_file():
        remedy = f'open it: wb.open_run("{shown(folder)}")'
        raise RunError(
            f"{shown(folder)}: a run of the workbench",
            rule="only a record without a run is converted",
            remedy=remedy,
        )
    if any(folder.glob("step-*.parquet")):
        if weights or right_by:
            rule = "parts of a record hold their weights, and which completions are right"
            raise RunError(
                "weights and right_by: not for parts",
                rule=rule,
                remedy="leave them out; wb.replay scores them again",
            )
        return _of_parts(folder, name or folder.name)
    files = sorted(folder.glob(f"completions/{_FILES}")) or sorted(folder.glob(_FILES))
    if not files:
        remedy = "train with log_completions=True; or, from now on, `wb.attach(trainer)`"
        rule = "TRL writes one at each logging step, and the workbench a step-….parquet"
        raise RunError(f"{shown(folder)}: no completions/{_FILES}", rule=rule, remedy=remedy)
    frames = [frame for file in files if len(frame := pandas.read_parquet(file))]
    if not frames:
        raise RunError(
            f"{shown(folder)}: no completions in {len(files)} files",
            rule=_SOME,
            remedy="look at them",
        )
    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    rows = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"] if states else []
    first = frames[0]
    numeric = [
        column
        for column in first.columns
        if column not in _OTHER and pandas.api.types.is_numeric_dtype(first[column])
    ]
    logged = set(function_names(key for row in rows for key in row))
    names = [column for column in numeric if column in logged] or numeric
    judge, least = (right_by, None) if isinstance(right_by, str) else (*right_by, None)[:2]
    for asked in (*(weights or {}), *filter(None, [judge])):
        if asked not in names:
            raise RunError(
                f"{asked!r}: no function of this run",
                rule=f"it has {', '.join(names)}",
                remedy="name one of these",
            )
    weighted = {column: float((weights or {}).get(column, 1.0)) for column in names}
    sizes = [len(list(own)) for frame in frames for _, own in itertools.groupby(frame["prompt"])]
    size = int(np.bincount(sizes).argmax())
    about = {"right_by": judge or names[0], "right_at": least, "right_by_default": not judge}
    manifest: Fields = {"attached": True, "rewards": {"weights": weighted}, "task": about}
    manifest["settings"] = {"asked": {}, "in_force": {"num_generations": size}}
    run = RunDirectory.create(name or folder.name, Recipe(run_name=name or folder.name), manifest)
    for frame in frames:
        step, prompts = int(frame["step"].iloc[0]), frame["prompt"].tolist()
        scores, right = (
            frame[names].to_numpy(dtype=float),
            right_of(frame[judge or names[0]], least),
        )
        batch = batch_of(
            names,
            [*weighted.values()],
            scores,
            frame["completion"].tolist(),
            right,
            size,
            prompts=prompts,
        )
        groups = batch.groups._replace(advantages=frame["advantage"].to_numpy(dtype=float))
        ids = {"prompt_id": [prompt_key(prompt)[:12] for prompt in prompts]}
        columns = columns_of(dataclasses.replace(batch, step=step, groups=groups, columns=ids))
        write_part(
            run.rollouts,
            step,
            {name: own for name, own in columns.items() if name != "length_tokens"},
            names,
        )  # TRL does not keep it
    for row in rows:
        run.log_metrics(row["step"], {key: value for key, value in row.items() if key != "step"})
    return _ended(run, int(frames[-1]["step"].iloc[0]))


def _of_parts(folder: Path, name: str) -> RunDirectory:
    # Copied as they are. metrics.jsonl, which is not there, becomes what TRL would have logged of
    # the same batches.
    own, rows, weights, size = parts(folder), [], {}, 0
    for batch in itertools.chain.from_iterable(read_part(part, bare=True) for part in own):
        weights |= dict(zip(batch.names, batch.weights, strict=True))
        scored = zip(batch.names, batch.scores.T, strict=True)
        row = {
            f"rewards/{function}/mean": float(np.nanmean(scores))
            for function, scores in scored
            if not np.isnan(scores).all()
        }
        row |= {REWARD: float(batch.totals.mean()), GROUP_STD: float(batch.groups.stds.mean())}
        row |= {
            ZERO_STD: float((batch.groups.stds < NO_SPREAD).mean()),
            MEAN_LENGTH: float(np.mean(batch.lengths)),
        }
        rows.append((batch.step, row))
        size = batch.num_generations
    if not rows:
        raise RunError(
            f"{shown(folder)}: no completions in {len(own)} parts",
            rule=_SOME,
            remedy="look at them",
        )
    settings = {"asked": {}, "in_force": {"num_generations": size}}
    run = RunDirectory.create(
        name,
        Recipe(run_name=name),
        {"attached": True, "rewards": {"weights": weights}, "settings": settings},
    )
    run.rollouts.mkdir(exist_ok=True)
    for part in own:
        shutil.copyfile(part, run.rollouts / part.name)
    for step, row in rows:
        run.log_metrics(step, row)
    return _ended(run, rows[-1][0])


def _ended(run: RunDirectory, steps: int) -> RunDirectory:
    run.update_manifest(result={"status": "finished", "steps": steps, "minutes": 0.0})
    run.release()
    return run
