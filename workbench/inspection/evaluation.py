"""Measuring a policy on held-out prompts, and comparing two of them on the same prompts.

Several completions per prompt, at the training temperature: GRPO trains a distribution, not its
likeliest completion. `evaluation.parquet` keeps every one, a row each, and grows batch by batch:
after a kill, what it holds is not measured again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.base.errors import DataError, RunError, TaskError, nearest
from workbench.base.kinds import Fields
from workbench.base.progress import progress_line
from workbench.base.workspace import find, shown, to_json
from workbench.data.difficulty import row_key
from workbench.inspection import statistics
from workbench.inspection.kept import FILE, Kept, measured_of
from workbench.inspection.measured import Evaluation, Measured
from workbench.inspection.reading import changed_since
from workbench.rewards.suite import RewardSuite
from workbench.run import sealed
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.training.adapters import put_on
from workbench.training.plan.loading import adapter_sum, base_differs, base_summed
from workbench.training.playing import marks_of
from workbench.training.policy import Policy, load_policy
from workbench.training.resuming import begun_task
from workbench.training.sampling import as_trained, scored_groups

_BATCH = 128  # completions generated together
_OF_THE_POLICY = ("name", "precision", "compute_dtype", "chat_template_kwargs")


def evaluate(
    run: RunDirectory,
    task: Task | None = None,
    *,
    held_out: int = 200,
    samples: int = 4,
    seed: int = 0,
    greedy: bool = False,
    checkpoints: Sequence[int | str] | str = (),
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure what a run gained: its base and its trained policy on held-out prompts that neither
    was trained on.

    >>> evaluation = wb.evaluate(wb.open_run(), held_out=8, samples=1)
    >>> print(evaluation)
    ...

    The policy is loaded on the run's own backend, and sampled at the temperature and length limit
    of training. Leaves `evaluation.json` and, in `evaluation.parquet`, every completion in the
    run's folder. Existing results are not measured again unless adapter, task or settings have
    changed; an evaluation under other settings is set aside, and found again. Changes of the task
    since the run are printed as warnings.

    Args:
        task: the run's task; None: loaded from its recipe.
        held_out: measure on at most this many prompts.
        samples: completions per prompt; 16 or more tell whether it was taught or sharpened.
        greedy: also take the likeliest tokens, once per prompt.
        checkpoints: steps of checkpoints to measure also, or "best" (of `eval_every`), or "all".
        progress: called with (prompts measured, prompts in all) after each batch; each policy and
            way to sample counts from 0.

    Raises:
        RunError: if the run has no adapter, or no such checkpoint; or is one of your own trainer,
            and `task` is None.
        DataError: if there are fewer than 2 held-out prompts.
    """
    with run.alone("eval") as lock:
        task = task or _task_of(run)
        rows = _rows(task, held_out)
        saved = _checkpoints(run, checkpoints)
        folders = {"base": None, "trained": run.adapter, **saved}
        for line in filter(None, (sealed.unsummed(run), sealed.retold(run))):
            print(f"WARNING: {line}")
        _warn(run, task, len(rows), samples)
        policy, base = loaded_for(run)
        suite = RewardSuite(task, samples, run.recipe().reward_weights)
        in_force = run.manifest()["settings"]["in_force"]
        sampling = as_trained(in_force, task)
        ways: dict[str, Fields] = {"sampled": {**sampling, "samples": samples}}
        if greedy:
            ways["greedy"] = {**sampling, "samples": 1, "temperature": 0.0}
        settings = _settings(policy, task, suite) | ways["sampled"] | {"seed": seed, "base": base}
        kept = Kept.open(run, settings)
        kept.make_room()
        kept.asked = {
            "rows": [*rows],
            "adapters": {
                who: adapter_sum(folder) if folder else "" for who, folder in folders.items()
            },
            "greedy": greedy,
            "steps": run.result()["steps"],
        }
        progress = progress or progress_line("evaluation, prompts answered")
        passes = [(who, how) for who in folders for how in ways]
        for number, (who, how) in enumerate(passes, 1):
            if who in saved:
                put_on(policy.model, saved[who])
            way = {**ways[how], "base": who == "base", "batch_size": _BATCH}
            size = max(1, _BATCH // way["samples"])
            for some, left in kept.missing(who, how, rows, size):
                # Each batch has its seed, so that a kill and a resume change no completion.
                way["seed"] = seed + int(next(iter(some))[:6], 16)
                scored = scored_groups(policy, task, [*some.values()], suite, **way)
                kept.add(who, how, some, scored)
                lock.beat()
                progress(number * len(rows) - left, len(passes) * len(rows))
        kept.save()  # it may hold more than this call asked for
        evaluation = kept.evaluation()
        run.write_json("evaluation.json", evaluation.found)
        return evaluation


def _task_of(run: RunDirectory) -> Task:
    # raises where nothing was kept that could be measured
    if run.manifest().get("attached") and run.adapter:
        raise RunError(
            f"{run.name}: recorded from your own trainer, so no task of the workbench belongs to"
            " it",
            rule="held-out prompts are scored by a task's reward functions",
            remedy="pass one: wb.evaluate(run, task=wb.Task(..., held_out=rows))",
        )
    recipe = run.recipe()
    try:
        return load_task(recipe.task)
    except TaskError:
        if find(recipe.task).is_file():
            raise
        return begun_task(run, recipe)  # its file is gone, or named from another folder: the copy


def _rows(task: Task, most: int) -> dict[str, Row]:
    rows = {row_key(row): row for row in task.with_ids(task.held_out)[:most]}
    if len(rows) < 2:
        raise DataError(
            f"task {task.name!r}: {len(rows)} held-out prompt",
            rule="a gain and its interval need at least 2",
            remedy="raise held_out, or give the task more held_out rows",
        )
    return rows


def _warn(run: RunDirectory, task: Task, prompts: int, samples: int) -> None:
    # What a reader of the gain has to know, and what can be told by so many completions.
    lines = [f"WARNING: {line}" for line in changed_since(run, task)]
    if (began := run.recipe().policy.adapter) is not None:
        lines.append(
            f"base is the model without the adapter that the run began with ({began}): the gain"
            " counts that one in"
        )
    if not task.right_by:
        lines.append(
            "WARNING: the task names no right_by: a completion counts as right when"
            f" {task.right_words}"
        )
    smallest = 100 * statistics.detectable(prompts, samples)
    lines.append(
        f"{prompts} prompts x {samples} completions detect a gain of about {smallest:.0f} points"
        " with 80 % power"
    )
    print("\n".join(lines))


def loaded_for(run: RunDirectory) -> tuple[Policy, Fields]:
    """A run's trained policy, and the files of its base, which are summed while it is loaded."""
    recipe, then = run.recipe(), run.manifest().get("policy") or {}
    base = base_summed(then.get("source") or recipe.policy.name)
    policy = load_policy(recipe, adapter=run.adapter)
    print(policy)
    if differs := base_differs(then.get("base"), base()):
        print(
            f"WARNING: the base is not the one that was trained ({differs}): the gain is measured"
            " from another policy"
        )
    return policy, base()


def _settings(policy: Policy, task: Task, suite: RewardSuite) -> Fields:
    return {
        **{name: getattr(policy, name) for name in _OF_THE_POLICY},
        "rewards": suite.hash,
        "right_by": task.right_rule,
        "format_by": task.format_by,
        **marks_of(task),
    }


def _checkpoints(run: RunDirectory, asked: Sequence[int | str] | str) -> dict[str, Path]:
    saved = {folder.name[11:]: folder for folder in reversed(run.saved())}
    if asked == "all":
        asked = [*saved]
    steps = [str(step).strip() for step in (asked.split(",") if isinstance(asked, str) else asked)]
    if "best" in steps:
        best = run.best.name[5:]
        saved = {best: run.best, **saved}
        steps = [best if step == "best" else step for step in steps]
    if missing := [step for step in steps if step not in saved]:
        raise RunError(
            f"{run.name}: no checkpoint of step {missing[0]!r}",
            rule="a checkpoint is named by its step, and save_total_limit in the recipe says how"
            " many are kept",
            remedy=nearest(
                missing[0],
                ("best", "all", *saved),
                f"choose from {', '.join(saved)}" if saved else "this run kept none; leave it out",
            ),
        )
    chosen = sorted(set(steps), key=int)
    return {f"checkpoint-{step}": sealed.as_saved(saved[step]) for step in chosen}


def read_evaluation(run: RunDirectory) -> Evaluation:
    """What `evaluate` measured last on this run, every completion of it; no policy is loaded.

    RunError if it has not been evaluated, or only in part, or if its adapter has changed since.
    """
    kept = Kept.open(run)
    evaluation = kept.evaluation()
    if kept.is_older:
        raise RunError(
            f"{shown(run.path / FILE)}: measured on an older adapter",
            rule="a gain belongs to the run's current adapter",
            remedy=f"`workbench eval {run.name}` measures the one that is there now",
        )
    return evaluation


def last_measured(run: RunDirectory) -> Fields | None:
    """What `evaluation.json` holds; None if there is none, or if it belongs to an adapter from
    before the run resumed.
    """
    if not (run.path / "evaluation.json").is_file() or (kept := Kept.open(run)).is_older:
        return None
    with contextlib.suppress(RunError):  # what the completions say, whatever is written of them
        return to_json(kept.evaluation().found)
    return run.read_json("evaluation.json")


def measure_policy(
    policy: Policy,
    task: Task,
    rows: Sequence[Row] | None = None,
    *,
    weights: dict[str, float] | None = None,
    samples: int = 4,
    **sampling: object,
) -> Measured:
    """Sample `samples` completions for each held-out prompt and score them with the task's own
    functions.

    Args:
        rows: prompts; None: the task's held-out rows. DataError if there are none.
        weights: of the reward functions, where they differ from the task's: the recipe's
            `reward_weights`.
        sampling: for `sample`: `max_completion_length`, `temperature`, `seed`, `base`,
            `batch_size`, `progress`.
    """
    rows = task.held_out if rows is None else rows
    if not len(rows):
        raise DataError(
            f"task {task.name!r}: 0 held-out prompts",
            rule="a policy is measured on prompts that it was not trained on",
            remedy="give the task held_out rows; notebook 01 splits them off",
        )
    suite = RewardSuite(task, samples, weights)
    sampling = {"batch_size": _BATCH, **sampling}
    return measured_of(scored_groups(policy, task, rows, suite, samples, **sampling), rows[0])
