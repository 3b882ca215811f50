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
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.errors import RunError
from workbench.health.trends import Interval
from workbench.inspection.hacks import Z_999, change_of_means
from workbench.inspection.reading import quoted
from workbench.inspection.statistics import in_points
from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import RunState, write_request
from workbench.run.directory import RunDirectory, open_run
from workbench.run.held_out import standing
from workbench.run.rollouts import query, read_batches
from workbench.task import Task, fingerprint
from workbench.tasks.loading import load_task
from workbench.training.manifest import rewards_of
from workbench.training.prepare import prepare
from workbench.training.resuming import (
    STATE_FILES,
    begun_task,
    kept_task,
    latest_point,
    recorded,
    sum_of_state,
)
from workbench.training.trainer import continue_run, train
from workbench.training.watchers import Watchers
from workbench.workspace import (
    append_line,
    find,
    replace_folder,
    shown,
    sum_of,
    to_json,
    write_json,
)

if TYPE_CHECKING:
    import pandas

WRONG = 'not "right"'
CAUSE, INNOCENT, UNTOLD = "cause", "not the cause", "cannot be told"
_COPIED = ("metrics.jsonl", "task.py", "warm_start.parquet", "rollouts", "held_out", "tasks")
_LEAST = 8  # groups, below which no mean is compared
# columns that every function's score is part of
_OF_ALL = r"\b(total|advantage|group_mean|group_std)\b"


class Sign(NamedTuple):
    """What grew in the original: more of it is worse."""

    sql: str
    share: bool  # of completions; or a number of each
    groups: pandas.DataFrame  # step, group, value: the mean over a group's completions
    # the steps at which it was lowest: what it was before
    first: int
    last: int


@dataclass(frozen=True)
class TwinPlan:
    """What a twin would train, decided before anything is."""

    run: RunDirectory  # the original
    folder: Path  # of the twin
    recipe: Recipe  # of the twin
    task: Task
    rewards: Fields  # of the twin's manifest
    suspects: list[str]  # the functions that are changed
    muted: str | None
    patch: Path | None
    sign: Sign
    step: int  # of the checkpoint; 0: from the start
    end: int  # the last step

    @property
    def asked(self) -> Fields:
        """For the twin's manifest: of which run it is, from where, and what was changed."""
        return {
            "of": self.run.name,
            "run_id": self.run.identity,
            "from": self.step,
            "changed": self.suspects,
            "patch": self.patch and _patched(self.patch),
        }

    @property
    def what(self) -> str:
        """The sign in words."""
        if self.sign.sql == WRONG:
            return "the share of wrong completions"
        return f"{'the share of' if self.sign.share else 'the mean of'} {self.sign.sql}"

    @property
    def change(self) -> str:
        """The change in words."""
        names = ", ".join(self.suspects)
        return f"{names} muted" if self.muted else f"{names} as in {shown(self.patch or '')}"

    def __str__(self) -> str:
        begins = f"from checkpoint-{self.step}" if self.step else "from the start"
        lines = [
            f"{self.folder.name}: {self.run.name} again {begins}, steps {self.step + 1} to"
            f" {self.end}, with {self.change}",
            f"compared: {self.what}, lowest in steps {self.sign.first} to {self.sign.last}; called"
            " where the twin surely undoes more, or surely less, than half of what it grew",
        ]
        if self.step >= self.sign.last:
            lines.append(f"note: it was lowest before checkpoint-{self.step}: see --from")
        if self.muted and self.recipe.grpo.get("scale_rewards", "group") not in (False, "none"):
            lines.append(
                f"note: advantages are divided by their spread, so without {self.muted} the other"
                " functions push as hard as all did together"
            )
        lines.append("assumed: luck alone, after the change, does not undo half of what grew")
        return "\n".join([*lines, f"run: {shown(self.folder)}"])


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
        both = _late(plan.sign, plan.step, plan.end).merge(self.groups, on=["step", "group"])
        return both.rename(columns={"value_x": "original", "value_y": "twin"}).dropna()

    @cached_property
    def before(self) -> pandas.Series:
        """The sign in each group of the clean steps."""
        return _clean(self.plan.sign)

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
        if len(self.late) < _LEAST or self.grew.low <= 0:
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
        few = len(self.late) < _LEAST
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


def _patched(file: Path) -> Fields:
    return {"file": str(file), "sha256": sum_of(file)}


def _mean(values: pandas.Series) -> Interval:
    value, reach = values.mean(), Z_999 * math.sqrt(values.var() / max(1, len(values)))
    return Interval(float(value), float(value - reach), float(value + reach))


def _late(sign: Sign, step: int, end: int) -> pandas.DataFrame:
    own = sign.groups
    return own[(own["step"] > end - (end - step) / 3) & (own["step"] <= end)]


def _clean(sign: Sign) -> pandas.Series:
    own = sign.groups
    return own[own["step"].between(sign.first, sign.last)]["value"].dropna()


def plan_twin(
    run: RunDirectory | str | Path = "latest",
    *,
    mute: str | None = None,
    patch: str | Path | None = None,
    checkpoint: str | None = None,
    steps: int | None = None,
    sign: str | None = None,
) -> TwinPlan:
    """What `twin` would train, checked as `plan` checks a recipe; nothing is loaded. Arguments and
    errors as for `twin`.
    """
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="recorded")
    file = find(patch) if patch else None
    if (about := run.manifest().get("twin")) and (
        about["changed"] == [mute] or (file and about["patch"] == _patched(file))
    ):  # "latest" is the twin itself, which is to be resumed
        run = open_run(run.path.with_name(about["of"]))
    run.check_ended()
    manifest, recipe = run.manifest(), run.recipe()
    if (
        manifest.get("attached")
        or "recipe" not in manifest
        or recipe.stages
        or bool(mute) == bool(patch)
    ):
        raise RunError(
            f"{run.name}: a twin of {'stages' if recipe.stages else 'this run'}, with"
            f" mute = {mute!r} and patch = {str(patch) if patch else None!r}",
            rule="a twin is of a run of one recipe without stages, and has one change",
            remedy="name one function to mute, or one edited task file",
        )
    rewards, weights = manifest["rewards"], RunState.of(run).weights
    if mute and not weights.get(mute):
        paid = ", ".join(name for name, weight in weights.items() if weight)
        value = f"{run.name}: {mute!r} {'weighs 0' if mute in weights else 'is no function of it'}"
        raise RunError(value, rule="what is muted was paid", remedy=f"choose from {paid}")
    task = load_task(file) if file else begun_task(run, recipe)
    if fingerprint(task.rows) != manifest["task"]["rows"]:
        raise RunError(
            f"{shown(file or task.source)}: not the training rows of {run.name}",
            rule="a twin trains on the same prompts in the same order",
            remedy="copy the run's task file, and change its reward functions alone",
        )
    recipe = recipe.model_copy(deep=True)
    if mute:
        recipe.reward_weights[mute] = 0.0
        recipe.adaptive_weights.pop(mute, None)
    else:
        recipe.task = str(file)
    now_paid = rewards_of(prepare(recipe, task).stages[0])
    suspects = _changed(rewards, now_paid)
    if suspects != [mute] if mute else not suspects:
        raise RunError(
            f"{run.name}: changed are {', '.join(suspects) or 'no reward functions'}",
            rule="a twin differs from its run in what is to be tried, and in nothing else",
            remedy="restore the other functions as they were" if mute else "edit one in the file",
        )
    signs = _signs(run, task if file else None, suspects, sign, weights)
    found = _comparable(run, signs, checkpoint, steps)
    how = f"without-{mute}" if mute else f"with-{Path(recipe.task).stem}"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{run.name}-{how}-from-{found[1]}")
    recipe.run_name, folder = name, run.path.with_name(name)
    return TwinPlan(run, folder, recipe, task, now_paid, suspects, mute, file, *found)


def why_no_twin(run: RunDirectory, mute: str) -> str:
    """What the record lacks for a twin with this function muted, and what to do; empty: nothing."""
    try:
        _comparable(run, _signs(run, None, [mute], None, RunState.of(run).weights))
    except RunError as error:
        return f"{error.value}; {error.remedy}"
    return ""


def _comparable(
    run: RunDirectory,
    signs: Iterator[Sign],
    checkpoint: str | None = None,
    steps: int | None = None,
) -> tuple[Sign, int, int]:
    # As `_grown`, and nothing was steered by hand since.
    found = _grown(run, signs, checkpoint, steps)
    changes = RunState.of(run).changes
    steered = [own for own in changes if own["step"] > found[1] and own["by"] != "adaptive"]
    if steered:
        raise RunError(
            f"{run.name}: {steered[-1]['action']} after step {steered[-1]['step']}, by"
            f" {steered[-1]['by']}",
            rule="a twin has one change, and what was steered by hand later is another",
            remedy="begin after that, with --from and a --sign that grew since",
        )
    return found


def _changed(then: Fields, now_paid: Fields) -> list[str]:
    # functions whose code or weight is another
    before, after = (
        {name: (code, each["weights"][name]) for name, code in each["functions"].items()}
        for each in (then, now_paid)
    )
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def _grown(
    run: RunDirectory, signs: Iterator[Sign], checkpoint: str | None, steps: int | None
) -> tuple[Sign, int, int]:
    # (the first sign that grew beyond chance, the step of the checkpoint, the last step)
    tried = []
    saved = {int(each.name.rpartition("-")[2]) for each in run.saved()}
    reached = run.result()["steps"]
    for sign in signs:
        # what a policy of N steps writes is on record as step N + 1
        step = max((each for each in saved if each < sign.last), default=0)
        if checkpoint:
            step = 0 if checkpoint in ("0", "base") else latest_point(run, checkpoint).step
        end = min(reached, step + (steps or reached))
        late = _late(sign, step, end)["value"].dropna()
        if len(late) < _LEAST and (checkpoint or steps):
            raise RunError(
                f"{run.name}: {len(late)} groups in the last third of steps {step + 1} to {end}",
                rule=f"a twin is compared by {_LEAST} groups or more",
                remedy="more --steps, or an earlier checkpoint with --from",
            )
        if change_of_means(_clean(sign), late).low > 0:
            return sign, step, end
        tried.append(f"{sign.sql!r} did not grow after steps {sign.first} to {sign.last}")
    raise RunError(
        f"{run.name}: {'; '.join(tried) or 'the suspect decides what is right'}",
        rule="there is a cause to find where something that the suspect does not score grew beyond"
        " chance",
        remedy="say what grew, in the record's columns: --sign 'length_tokens > 60', --sign"
        " \"completion like '%sure%'\"",
    )


def _signs(
    run: RunDirectory,
    patched: Task | None,
    suspects: list[str],
    asked: str | None,
    weights: dict[str, float],
) -> Iterator[Sign]:
    right = (run.manifest().get("task") or {}).get("right_by")
    if asked:
        own = [*suspects, *(["right"] if right in suspects else [])]
        named = "|".join([_OF_ALL, *(rf"\b{re.escape(name)}\b" for name in own)])
        if found := re.search(named, asked):
            raise RunError(
                f"--sign {asked}: {found[0]} is the suspect's own score, or holds it",
                rule="what grew is measured by what the suspect does not score",
                remedy="name a text, a length, or another function's score",
            )
        yield _sign(run, asked, _by_group(run, asked))
        return
    if right not in suspects:
        yield _sign(run, WRONG, _by_group(run, WRONG))
    elif patched:
        yield _sign(run, WRONG, _judged(run, patched))
    for name, weight in weights.items():
        if not weight and name not in suspects:
            sql = f"-{quoted('score.' + name)}"
            yield _sign(run, sql, _by_group(run, sql))


def _sign(run: RunDirectory, sql: str, groups: pandas.DataFrame) -> Sign:
    by_step = groups.groupby("step")["value"].agg(["mean", "count"])
    width = max(len(by_step) // 6, math.ceil(_LEAST / max(1.0, by_step["count"].mean())))
    if len(by_step) < 3 * width:
        raise RunError(
            f"{run.name}: {len(by_step)} steps on record",
            rule=f"what grew is seen over {3 * width} steps or more",
            remedy="train longer first",
        )
    means = by_step["mean"].rolling(width).mean().round(9)
    last = int(means[::-1].idxmin())  # of equals, the latest
    first = [int(step) for step in by_step.index if step <= last][-width]
    return Sign(sql, sql == WRONG or set(groups["kind"]) == {"BOOLEAN"}, groups, first, last)


def _by_group(run: RunDirectory, sql: str) -> pandas.DataFrame:
    import duckdb

    try:
        return query(
            run.rollouts,
            f"""select step, "group", avg(cast(({sql}) as double)) as value,
            any_value(typeof({sql})) as kind from rollouts group by step, "group" order by all""",
        )
    except duckdb.Error as error:
        raise RunError(
            f"--sign {sql}: {str(error).splitlines()[0]}",
            rule="a sign is an expression in DuckDB's SQL over the columns of the record",
            remedy="for example: length_tokens > 60; wb.inspection.browse(run) shows the columns",
        ) from None


def _judged(run: RunDirectory, task: Task) -> pandas.DataFrame:
    # wrong completions as an edited task judges them
    import pandas

    by, rows = task.right_function, []
    with contextlib.closing(RewardSuite(task, 1, keep_state=False)) as suite:
        for batch in read_batches(run):
            scored = suite.score_each(batch.rows, batch.completions, names=[by])[by]
            wrong = ~task.is_right(scored.scores).reshape(batch.group_count, -1)
            for place, share in zip(batch.group_places, wrong.mean(axis=1)):
                rows.append((batch.step, place, share))
    return pandas.DataFrame(rows, columns=["step", "group", "value"])


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
    workbench.errors.RunError: ...

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
    judged = sql == WRONG and plan.task.right_function in plan.suspects
    groups = _judged(own, plan.task) if judged else _by_group(own, sql)
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
