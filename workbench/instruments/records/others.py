"""Records without a run: TRL's own output, or loose parts of ours, become a run directory that
every view can read.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import resolve, shown
from workbench.health.summary import summarise
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.rewards.right import judges_of, right_in
from workbench.run.directory import RunDirectory
from workbench.run.metrics import (
    DEAD,
    GROUP_STD,
    MEAN_LENGTH,
    REWARD,
    ZERO_STD,
    function_names,
    per_function,
)
from workbench.run.parts import parts
from workbench.run.rollouts import columns_of, read_part, write_part
from workbench.task import prompt_key

_OTHER = ("step", "prompt", "completion", "advantage")  # columns that are no reward function's
_FILES = "completions_*.parquet"


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
    folder = resolve(folder)
    name = name or folder.name
    if (folder / "recipe.yaml").is_file():
        raise RunError(
            f"{shown(folder)}: a run of the workbench",
            rule="only a record without a run is converted",
            remedy=f'open it: wb.open_run("{shown(folder)}")',
        )
    if not any(folder.glob("step-*.parquet")):
        return _of_trl(folder, name, dict(weights or {}), right_by)
    if weights or right_by:
        raise RunError(
            "weights and right_by: not for parts",
            rule="parts of a record hold their weights, and which completions are right",
            remedy="leave them out; wb.replay scores them again",
        )
    return _of_parts(folder, name)


def _of_trl(
    folder: Path, name: str, weights: dict[str, float], right_by: str | tuple[str, float]
) -> RunDirectory:
    import pandas

    files = sorted(folder.rglob(_FILES))
    frames = [frame for file in files if len(frame := pandas.read_parquet(file))]
    if not frames:
        raise RunError(
            f"{shown(folder)}: no completions/{_FILES} with completions",
            rule="TRL writes one at each logging step, and the workbench a step-….parquet",
            remedy="train with log_completions=True; or, from now on, `wb.attach(trainer)`",
        )
    states = sorted(folder.rglob("trainer_state.json"), key=lambda file: file.stat().st_mtime)
    rows = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"] if states else []
    logged = {*function_names(key for row in rows for key in row)}
    numeric = frames[0].drop(columns=_OTHER, errors="ignore").select_dtypes(["number", "bool"])
    names = [column for column in numeric if column in logged] or [*numeric]
    judge, least = (right_by, None) if isinstance(right_by, str) else right_by
    if unknown := [each for each in (*weights, judge) if each and each not in names]:
        raise RunError(
            f"{unknown[0]!r}: no function of this run",
            rule=f"it has {', '.join(names)}",
            remedy="name one of these",
        )
    weighted = {column: float(weights.get(column, 1.0)) for column in names}
    size = statistics.mode(
        len([*own]) for frame in frames for _, own in itertools.groupby(frame["prompt"])
    )
    decides = judge or names[0]
    judges = judges_of(weighted, decides, bool(judge))
    about = {"right_by": decides, "right_at": least, "right_by_default": not judge}
    run = _created(name, weighted, size, task=about)
    for frame in frames:
        step, prompts = int(frame["step"].iloc[0]), frame["prompt"].tolist()
        batch = batch_of(
            names,
            [*weighted.values()],
            frame[names].to_numpy(dtype=float),
            frame["completion"].tolist(),
            right_in(frame[judges].to_numpy(dtype=float), size, least),
            size,
            step=step,
            prompts=prompts,
            columns={"prompt_id": [prompt_key(prompt)[:12] for prompt in prompts]},
        )
        trained = batch.groups._replace(advantages=frame["advantage"].to_numpy(dtype=float))
        columns = columns_of(dataclasses.replace(batch, groups=trained))
        del columns["length_tokens"]  # TRL does not keep it
        write_part(run.rollouts, step, columns, names)
    return _ended(run, rows, step)


def _of_parts(folder: Path, name: str) -> RunDirectory:
    # Copied as they are. metrics.jsonl, which is not there, becomes what TRL would have logged of
    # the same batches.
    weights: dict[str, float] = {}
    rows: list[Fields] = []
    size = 0
    for batch in itertools.chain.from_iterable(
        read_part(part, bare=True) for part in parts(folder)
    ):
        weights |= zip(batch.names, batch.weights)
        summary, size = summarise(batch), batch.num_generations
        means = {
            per_function(own.name): own.mean for own in summary.functions if own.mean is not None
        }
        rows.append(
            {
                "step": batch.step,
                **means,
                REWARD: float(batch.totals.mean()),
                GROUP_STD: summary.group_std,
                ZERO_STD: summary.metrics[DEAD],
                MEAN_LENGTH: summary.length,
            }
        )
    if not rows:
        raise RunError(
            f"{shown(folder)}: no completions in its parts",
            rule="a step has completions",
            remedy="look at them",
        )
    run = _created(name, weights, size)
    run.rollouts.mkdir(exist_ok=True)
    for part in parts(folder):
        shutil.copyfile(part, run.rollouts / part.name)
    return _ended(run, rows, batch.step)


def _created(name: str, weights: dict[str, float], size: int, **about: Fields) -> RunDirectory:
    settings = {"asked": {}, "in_force": {"num_generations": size}}
    manifest = {"attached": True, "rewards": {"weights": weights}, "settings": settings, **about}
    return RunDirectory.create(name, Recipe(run_name=name), manifest)


def _ended(run: RunDirectory, rows: list[Fields], steps: int) -> RunDirectory:
    for row in rows:
        run.log_metrics(row["step"], {key: value for key, value in row.items() if key != "step"})
    run.update_manifest(result={"status": "finished", "steps": steps, "minutes": 0.0})
    run.release()
    return run
