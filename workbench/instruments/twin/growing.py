"""A control arm: was this reward function, or this branch of it, the cause of what grew in a run?

A twin is a copy of a run's record up to a clean checkpoint, trained on from there with the same
seed, prompts and settings, and one change: a function's weight is 0, or the reward functions are
those of an edited task file. Until the change the two are equal to the bit; the first new step,
which samples before anything is learnt under the change, shows whether they are on this machine.

What is compared is a sign of the hack that the suspect does not score: the share of wrong
completions, or any expression over the record. After the change the two runs differ by the change
and by luck, as two seeds would, and one pair of runs does not tell how much luck does. So nothing
small is called: the twin must surely undo more than half of what grew, or surely less.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import append_line, replace_folder, shown, to_json, write_json
from workbench.health.trends import Interval
from workbench.inspection.hacks import Z_999, change_of_means
from workbench.inspection.statistics import in_points
from workbench.instruments.twin.planning import TwinPlan, plan_twin
from workbench.instruments.twin.signs import LEAST, WRONG, by_group, judged
from workbench.run.control_file import RunState, write_request
from workbench.run.directory import RunDirectory
from workbench.run.held_out import standing
from workbench.run.rollouts import query
from workbench.training.changes import recorded
from workbench.training.resuming import STATE_FILES, kept_task, sum_of_state
from workbench.training.trainer import continue_run, train
from workbench.training.watchers import Watchers

if TYPE_CHECKING:
    import pandas

CAUSE, INNOCENT, UNTOLD = "cause", "not the cause", "cannot be told"
_COPIED = ("metrics.jsonl", "task.py", "warm_start.parquet", "rollouts", "held_out", "tasks")


@dataclass(frozen=True, repr=False)
class Twin:
    """A run and its twin; a cell shows the sign over the steps of both, and the verdict."""

    plan: TwinPlan
    groups: pandas.DataFrame  # of the twin, as `Sign.groups`
    # whether the first new step sampled the same completions; None: it was not recorded
    equal: bool | None = None

    @cached_property
    def late(self) -> pandas.DataFrame:
        """The last third of the steps after the checkpoint, the same groups of both: step, group,
        original, twin.
        """
        plan = self.plan
        both = plan.sign.late(plan.step, plan.end).merge(self.groups, on=["step", "group"])
        return both.rename(columns={"value_x": "original", "value_y": "twin"}).dropna()

    @property
    def before(self) -> pandas.Series:
        """The sign in each group of the clean steps."""
        return self.plan.sign.clean

    @cached_property
    def grew(self) -> Interval:
        """How much more of the sign the original has late than before."""
        return change_of_means(self.before, self.late["original"])

    @cached_property
    def undone(self) -> Interval:
        """How much less of it the twin has, late, on the same prompts in the same steps."""
        return _mean(self.late["original"] - self.late["twin"])

    @cached_property
    def beyond_half(self) -> Interval:
        """`undone` less half of `grew`."""
        half = _mean(self.before / 2)
        rest = _mean(self.late["original"] / 2 - self.late["twin"])
        value = rest.value + half.value
        reach = math.hypot(rest.high - rest.value, half.high - half.value)
        return Interval(value, value - reach, value + reach)

    @property
    def verdict(self) -> str:
        """`CAUSE`, `INNOCENT` or `UNTOLD`."""
        if len(self.late) < LEAST or self.grew.low <= 0:
            return UNTOLD
        if self.beyond_half.low > 0 < self.undone.low:
            return CAUSE
        return INNOCENT if self.beyond_half.high < 0 else UNTOLD

    @property
    def more(self) -> int | None:
        """About how many steps from the checkpoint on would tell; None: it is told, or no number
        of them would.
        """
        value, low, _ = self.beyond_half
        few = len(self.late) < LEAST
        if few or self.verdict != UNTOLD or abs(value) < (value - low) / 3:
            return None
        return math.ceil((self.plan.end - self.plan.step) * ((value - low) / value) ** 2)

    @property
    def found(self) -> Fields:
        """For `--json`."""
        means = {name: float(self.late[name].mean()) for name in ("original", "twin")}
        return {
            "verdict": self.verdict,
            **self.plan.asked,
            "sign": self.plan.sign.sql,
            "before": float(self.before.mean()),
            **means,
            "grew": self.grew._asdict(),
            "undone": self.undone._asdict(),
            "equal_until_the_change": self.equal,
            "more_steps": self.more,
            "run": str(self.plan.folder),
            "words": str(self),
        }

    def __str__(self) -> str:
        plan, share, verdict = self.plan, self.plan.sign.share, self.verdict
        means = self.before.mean(), *(self.late[name].mean() for name in ("original", "twin"))
        before, original, twin = (f"{each:.0%}" if share else f"{each:.3g}" for each in means)
        low, high = self.undone[1:]
        less = f"{in_points(low, high)} points" if share else f"{low:+.2g} to {high:+.2g}"
        suspects, without = ", ".join(plan.suspects), "muted" if plan.muted else "patched"
        head = f"{suspects} was {'the ' if verdict == CAUSE else ''}{verdict}"
        if verdict == UNTOLD:
            head = f"{UNTOLD} whether {suspects} was the cause"
        ended = f"{plan.what} grew from {before} to {original}, and with it {without} to {twin}"
        lines = [f"{head}: {ended} ({less} less)"]
        if verdict == UNTOLD and self.more:
            lines.append(f"about {self.more} steps of both after the checkpoint would tell")
        elif verdict == UNTOLD:
            lines.append(
                "about half of it is undone: another function may share the blame; the same of a"
                " run with another seed tells luck from cause"
            )
        if self.equal is not None:
            same = "the same completions" if self.equal else "WARNING: not the same completions"
            lines.append(f"the first new step, sampled before the change can act: {same} in both")
        return "\n".join(lines)

    __repr__ = __str__


def _mean(values: pandas.Series) -> Interval:
    value, reach = values.mean(), Z_999 * math.sqrt(values.var() / max(1, len(values)))
    return Interval(float(value), float(value - reach), float(value + reach))


def twin(
    run: RunDirectory | str | Path = "latest",
    *,
    mute: str | None = None,
    patch: str | Path | None = None,
    checkpoint: str | None = None,
    steps: int | None = None,
    sign: str | None = None,
    watchers: Watchers = (),
) -> Twin:
    """Train a run again without a suspect, from before the hack, and say whether it was the cause.

    >>> wb.inspection.twin("run", mute="length_reward")
    Traceback (most recent call last):
    workbench.base.errors.RunError: ...

    (That run is too short for it.) The twin begins at the newest checkpoint from before the hack
    grew, or at the start, with the run's own seed, prompts and settings, and one change. It is a
    separate run; the original stays as it is. Called again, it resumes.

    What grew is measured by what the suspect does not score. It was the cause if the twin surely
    undoes more than half of that, and not if surely less, both with intervals of 99.9 % over the
    groups of the last third of the steps. One pair of runs does not tell how much luck does after
    the change: that luck alone does not undo half is assumed.

    Args:
        run: a run that has ended, or its name or path.
        mute: the reward function whose weight becomes 0.
        patch: the run's task file with an edited reward function, instead.
        checkpoint: begin at this one, `"checkpoint-20"`, or at `"base"`; None: the newest from
            before the steps at which the sign was lowest, or from the start if there is none.
        steps: after the checkpoint; None: as far as the original got.
        sign: what grew, in DuckDB's SQL over the record's columns, such as `length_tokens > 60`;
            None: wrong completions; where the suspect decides what is right, those that a patched
            file calls wrong, or else what functions of weight 0 pay less.
        watchers: as for `train`.

    Raises:
        RunError: if nothing grew beyond chance, the suspect is none, or more than it would differ.
            Others as for `continue_run`.
    """
    options: Fields = {"checkpoint": checkpoint, "steps": steps, "sign": sign}
    return grow(plan_twin(run, mute=mute, patch=patch, **options), watchers=watchers)


def grow(plan: TwinPlan, *, watchers: Watchers = ()) -> Twin:
    """Train what is left of a planned twin."""
    own = RunDirectory(plan.folder)
    if not (plan.folder / "recipe.yaml").is_file():
        if plan.folder.exists() and any(plan.folder.iterdir()):
            raise RunError(
                f"{shown(plan.folder)}: not a twin",
                rule="a twin's folder holds nothing else",
                remedy="rename or delete that folder",
            )
        if plan.step or (plan.run.checkpoints / "checkpoint-0").is_dir():
            _copy(plan)
    elif own.mend().manifest().get("twin") != to_json(plan.asked):
        raise RunError(
            f"{shown(plan.folder)}: a run of that name, and not this twin",
            rule="a twin resumes with the change that it began with",
            remedy="rename or delete that folder",
        )
    own.check_free()
    shown_by = [*(watchers or ()), _Watch(plan)]
    with contextlib.redirect_stdout(io.StringIO()):  # the plan has said what is to be said
        if not plan.folder.exists() or not own.saved():  # or killed before its first checkpoint
            shutil.rmtree(plan.folder, ignore_errors=True)
            train(plan.recipe, task=plan.task, watchers=shown_by, runs=plan.folder.parent)
        elif own.result()["steps"] < plan.end or own.result()["status"] == "killed":
            continue_run(own, watchers=shown_by)
    if own.result()["steps"] < plan.end:  # somebody stopped it
        raise KeyboardInterrupt
    sql = plan.sign.sql
    by_task = sql == WRONG and plan.task.right_function in plan.suspects
    groups = judged(own, plan.task) if by_task else by_group(own, sql)
    return Twin(plan, groups, _equal(plan, own))


class _Watch:
    """Marks the run as a twin, and asks it to stop after its last step: with fewer steps in its
    recipe, it would have another schedule.
    """

    def __init__(self, plan: TwinPlan) -> None:
        self.plan = plan

    def begin(self, run: RunDirectory, total_steps: int, settings: Fields) -> None:
        self.run, kept = run, kept_task(self.plan.run, None)
        run.update_manifest(twin=self.plan.asked)
        if kept.is_file() and not self.plan.patch:  # the file may have been edited since
            shutil.copyfile(kept, kept_task(run, None))

    def batch(self, scored: Any, summary: object) -> None:
        if scored.step >= self.plan.end:
            write_request(self.run, "stop", "twin", {})

    def update(self, step: int, values: Fields) -> None: ...
    def end(self, message: str) -> None: ...


def _copy(plan: TwinPlan) -> None:
    # The record, which is cut at the checkpoint when the first step is trained, as that of a run
    # that was muted or patched there.
    run, step = plan.run, plan.step
    manifest, saved = run.manifest(), f"checkpoints/checkpoint-{step}"
    events = [own for own in standing(run.events()) if (own.get("step") or 0) <= step]
    state = RunState.begun(manifest)
    for event in events:
        state.apply(event)
    state.apply({"event": "continued", "step": step})
    told: Fields = {"event": "control", "step": step, "id": "twin", "action": "mute", "by": "twin"}
    told |= {"from_step": step + 1, "applied": True, "function": plan.muted}
    told |= {"before": state.weights, "after": {**state.weights, str(plan.muted): 0.0}}
    # before the checkpoint's own line: what comes after that is undone
    saved_at = [
        n for n, own in enumerate(events) if (own["event"], own["step"]) == ("checkpoint", step)
    ]
    at = max(saved_at, default=len(events))
    events = [*events[:at], *([told] if plan.muted else []), *events[at : at + 1]]
    manifest |= {"id": uuid.uuid4().hex, "recipe": plan.recipe.model_dump(mode="json")}
    manifest |= {"rewards": plan.rewards, "twin": plan.asked}
    manifest |= dict.fromkeys(("result", "before", "adapter"))
    if plan.patch:
        manifest["task"] |= {"source": str(plan.patch), "name": plan.task.name}
    with replace_folder(plan.folder) as folder:
        for name in _COPIED:
            source = plan.patch if plan.patch and name == "task.py" else run.path / name
            if source.exists():
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
        shutil.copytree(run.path / saved, folder / saved)
        for event in events:
            append_line(folder / "events.jsonl", event)
        write_json(folder / "manifest.json", manifest)
        # the checkpoint is the twin's own now, under the settings of its record
        own, file = RunDirectory(folder), f"{saved}/{STATE_FILES[1]}"
        kept = own.read_json(file)
        del kept["sha256"]
        settings = to_json(recorded(own, step)["events.jsonl"])
        kept |= {"run": own.identity, "recorded": kept["recorded"] | {"events.jsonl": settings}}
        own.write_json(file, kept | {"sha256": sum_of_state(kept)})
        plan.recipe.save(folder / "recipe.yaml")


def _equal(plan: TwinPlan, twin: RunDirectory) -> bool | None:
    steps = plan.sign.groups["step"]
    first = int(steps[steps > plan.step].min())
    sql = 'select completion from rollouts order by "group", generation'
    texts = [
        query(run.rollouts, sql, step=first)["completion"].tolist() for run in (plan.run, twin)
    ]
    return texts[0] == texts[1] if all(texts) else None
