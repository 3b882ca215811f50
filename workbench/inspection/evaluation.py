"""Measuring a policy on held-out prompts, and comparing two of them on the same prompts.

Several completions per prompt, at the training temperature: GRPO trains a distribution, not its
likeliest completion. `evaluation.parquet` keeps every one, a row each, and grows batch by batch:
after a kill, what it holds is not measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from workbench.audit.prompt_format import parse_format
from workbench.data.difficulty import row_key
from workbench.errors import DataError, RunError
from workbench.inspection import statistics
from workbench.inspection.reading import changed_since
from workbench.inspection.statistics import share_interval
from workbench.kinds import Fields
from workbench.progress import progress_line
from workbench.rewards.answers import find_answer
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.held_out import completion_rows, write_completions
from workbench.run.lock import Lock
from workbench.task import Row, Task, load_task
from workbench.training.loading import adapter_sum, base_differs, base_summed, put_on
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import scored_groups
from workbench.workspace import renamed, shown

FILE = "evaluation.parquet"
_ASIDE = "evaluation-{}.parquet"  # under settings that are not those of the last
_BATCH = 128  # completions generated together
Group = list[Fields]  # the completions of one prompt, each with its numbers


@dataclass(frozen=True)
class Measured:
    """A policy on P prompts, G completions each. Arrays are [P, G]."""

    completions: list[list[str]]
    lenient: np.ndarray  # bool: right, whatever the format
    # bool: keeps the strict format; None where the task does not measure it
    format: np.ndarray | None
    finished: np.ndarray  # bool: ended before the limit
    total: np.ndarray  # weighted reward
    answer_tag: str = "answer"  # where its task asks for the answer

    @property
    def correct(self) -> np.ndarray:
        """Right, and in the strict format where there is one: [P, G] bool."""
        return self.lenient if self.format is None else self.lenient & self.format

    def some(self, places: Sequence[int]) -> Measured:
        """The same policy on some of the prompts."""
        own = {
            name: value[list(places)]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return dataclasses.replace(
            self, completions=[self.completions[place] for place in places], **own
        )

    def shares(self) -> dict[str, float | None]:
        """The shares of all completions: `correct` (strict), `correct_lenient`, `format`,
        `finished`; mean `reward`.
        """
        counted = {
            "correct": self.correct,
            "correct_lenient": self.lenient,
            "format": self.format,
            "finished": self.finished,
        }
        shares = {
            name: None if flags is None else float(flags.mean()) for name, flags in counted.items()
        }
        return {**shares, "reward": float(np.nanmean(self.total))}

    def pass_at_k(self) -> np.ndarray:
        """[P, G]: strict pass@k of each prompt, for k = 1 to G."""
        return statistics.pass_at_k(self.correct.sum(axis=1), self.correct.shape[1])

    def majority(self) -> float:
        """The share of prompts whose most frequent answer is right: what is in tags, after a mark
        or in a box, else all.
        """
        answers = [[_answer(text, self.answer_tag) for text in group] for group in self.completions]
        return float(statistics.majority(answers, self.lenient).mean())


def _answer(text: str, tag: str) -> str:
    return next(
        filter(None, (find_answer(text, where, tag) for where in ("tag", "mark", "boxed"))), text
    )


def _both(of: Callable[[Measured], Any], before: Measured, after: Measured) -> Fields:
    return {"before": of(before), "after": of(after)}


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Base and trained policy on the same held-out prompts; a cell shows the shares before and
    after, pass@k, and the gain.
    """

    prompts: list[Any]
    before: Measured
    after: Measured
    # what said which completions are right: a function, or "function >= threshold"
    right_by: str = ""
    # base and trained, one completion a prompt: the likeliest tokens
    greedy: tuple[Measured, Measured] | None = None
    # by step; 0: base. Empty where no checkpoints were asked for
    curve: dict[int, Measured] = field(default_factory=dict)
    rows: Sequence[Row] = ()  # [P] the held-out rows, with their answers

    @cached_property
    def found(self) -> Fields:
        """What `evaluation.json` holds: the shares before and after, the paired gain, and its
        verdict.
        """
        both, (prompts, samples) = (self.before, self.after), self.before.correct.shape
        correct, ends = (self.before.correct, self.after.correct), ("correct", "low", "high")
        low, high = statistics.bootstrap_interval(correct[1].mean(axis=1) - correct[0].mean(axis=1))
        found = {
            **_both(Measured.shares, *both),
            "gain": dict(zip(ends, statistics.share_gain(*correct))),
        }
        found |= {"prompts": prompts, "samples": samples, "right_by": self.right_by}
        found |= {
            "bootstrap": {"low": float(low), "high": float(high)},
            "needed": statistics.needed(*correct),
        }
        found |= {
            "detectable": statistics.detectable(prompts, samples),
            "majority": _both(Measured.majority, *both),
        }
        found["pass_at_k"] = _both(lambda own: own.pass_at_k().mean(axis=0).tolist(), *both)
        found["best_of"] = _both(
            lambda own: float(statistics.best_of_n(own.total, own.correct).mean()), *both
        )
        found["verdict"] = dict(zip(("word", "why"), statistics.taught_or_sharpened(*correct)))
        if greedy := self.greedy:
            changed = statistics.mcnemar(*(own.correct[:, 0] for own in greedy))
            found |= {
                "greedy": _both(Measured.shares, *greedy),
                "mcnemar": dict(zip(("fixed", "broken", "p"), changed)),
            }
        curve = [(step, *share_interval(own.correct)) for step, own in self.curve.items()]
        return found | {"curve": [dict(zip(("step", *ends), point)) for point in curve]}

    @property
    def pairs(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(what is counted, before, after), arrays [P, G] of bools."""
        counted = {
            "correct, strict format": "correct",
            "correct, lenient": "lenient",
            "strict format": "format",
        }
        pairs = [
            (label, getattr(self.before, of), getattr(self.after, of))
            for label, of in counted.items()
        ]
        return [pair for pair in pairs if pair[1] is not None and pair[2] is not None]

    def __str__(self) -> str:
        found, n = self.found, self.found["samples"]
        old, new = found["before"], found["after"]
        bootstrap = statistics.in_points(**found["bootstrap"])
        lines = [
            f"{gain_in_words(found)}; {found['prompts']} held-out prompts, {n} completions each"
        ]
        if found["needed"]:
            lines.append(
                f"the interval contains 0: about {found['needed']:,} more prompts detect such a"
                " gain with 80 % power"
            )
        lines.append("{word}: {why}".format(**found["verdict"]))
        lines.append(
            f"mean reward {old['reward']:.2f} -> {new['reward']:.2f}; "
            f"ended before the limit {old['finished']:.0%} -> {new['finished']:.0%}"
        )
        if n > 1:
            ks = [2**power for power in range(n.bit_length())]
            curves = (
                ", ".join(f"{own[k - 1]:.0%}" for k in ks) for own in found["pass_at_k"].values()
            )
            lines.append(f"pass@{', '.join(map(str, ks))}: {' -> '.join(curves)}")
            voted, best = (
                " -> ".join(f"{share:.0%}" for share in found[by].values())
                for by in ("majority", "best_of")
            )
            lines.append(f"majority of {n} {voted}; best of {n} by the training reward {best}")
        if "greedy" in found:
            shares = " -> ".join(f"{own['correct']:.0%}" for own in found["greedy"].values())
            changed = "{fixed} prompts fixed, {broken} broken, exact McNemar p = {p:.2g}".format(
                **found["mcnemar"]
            )
            lines.append(f"greedy {shares}: {changed}")
        lines += [
            "step {step}: {correct:.0%} ({low:.0%} to {high:.0%})".format(**point)
            for point in found["curve"]
        ]
        # else no prompt differs from another: nothing to draw from
        if found["bootstrap"]["low"] < found["bootstrap"]["high"]:
            lines.append(f"the gain's interval by bootstrap over prompts (BCa): {bootstrap}")
        return "\n".join(lines)

    __repr__ = __str__


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
        return _evaluated(run, task, lock, held_out, samples, seed, greedy, checkpoints, progress)


def _evaluated(
    run: RunDirectory,
    task: Task | None,
    lock: Lock,
    held_out: int,
    samples: int,
    seed: int,
    greedy: bool,
    checkpoints: Sequence[int | str] | str,
    progress: Callable[[int, int], None] | None,
) -> Evaluation:
    # raises where nothing was kept that could be measured
    if task is None and run.manifest().get("attached") and run.adapter:
        value = (
            f"{run.name}: recorded from your own trainer, so no task of the workbench belongs to it"
        )
        remedy = "pass one: wb.evaluate(run, task=wb.Task(..., held_out=rows))"
        raise RunError(
            value, rule="held-out prompts are scored by a task's reward functions", remedy=remedy
        )
    recipe, in_force = run.recipe(), run.manifest()["settings"]["in_force"]
    task = task or load_task(recipe.task)
    rows = {row_key(row): row for row in _held_out(task, task.with_ids(task.held_out))[:held_out]}
    if len(rows) < 2:
        value, rule = (
            f"task {task.name!r}: {len(rows)} held-out prompt",
            "a gain and its interval need at least 2",
        )
        raise DataError(
            value, rule=rule, remedy="raise held_out, or give the task more held_out rows"
        )
    folders = {"base": None, "trained": run.adapter, **_checkpoints(run, checkpoints)}
    for line in changed_since(run, task):
        print(f"WARNING: {line}")
    if recipe.policy.adapter is not None:
        began = recipe.policy.adapter
        print(
            f"base is the model without the adapter that the run began with ({began}): the gain"
            " counts that one in"
        )
    if not task.right_by:
        print(
            "WARNING: the task names no right_by: a completion counts as right when"
            f" {task.right_words}"
        )
    smallest = 100 * statistics.detectable(len(rows), samples)
    print(
        f"{len(rows)} prompts x {samples} completions detect a gain of about {smallest:.0f} points"
        " with 80 % power"
    )
    then = run.manifest().get("policy") or {}
    base = base_summed(then.get("source") or recipe.policy.name)
    policy, suite = (
        load_policy(recipe, adapter=run.adapter),
        RewardSuite(task, samples, recipe.reward_weights),
    )
    print(policy)
    if differs := base_differs(then.get("base"), base()):
        print(
            f"WARNING: the base is not the one that was trained ({differs}): the gain is measured"
            " from another policy"
        )
    sampled: Fields = {
        "samples": samples,
        **{name: in_force[name] for name in ("max_completion_length", "temperature")},
    }
    ways: dict[str, Fields] = {"sampled": sampled} | (
        {"greedy": {**sampled, "samples": 1, "temperature": 0.0}} if greedy else {}
    )
    settings = {
        name: getattr(policy, name)
        for name in ("name", "precision", "compute_dtype", "chat_template_kwargs")
    }
    settings |= {
        "rewards": suite.hash,
        "right_by": task.right_rule,
        "format_by": task.format_by,
        "seed": seed,
        **sampled,
    }
    settings["base"] = base()
    kept = _Kept.open(run, settings)
    kept.make_room()
    adapters = {who: adapter_sum(folder) if folder else "" for who, folder in folders.items()}
    kept.asked = {
        "rows": [*rows],
        "adapters": adapters,
        "greedy": greedy,
        "steps": run.result()["steps"],
    }
    passes, progress = (
        [(who, how) for who in folders for how in ways],
        progress or progress_line("evaluation, prompts answered"),
    )
    for number, (who, how) in enumerate(passes, 1):
        if who not in ("base", "trained"):
            put_on(policy.model, cast(Path, folders[who]))  # a checkpoint's
        missing = [key for key in rows if (who, how, adapters[who], key) not in kept.groups]
        size = max(1, _BATCH // ways[how]["samples"])
        for start in range(0, len(missing), size):
            some = {key: rows[key] for key in missing[start : start + size]}
            # A seed of the batch's own: what goes on after a kill ends as if it had not been.
            own: Fields = {
                **ways[how],
                "seed": seed + int(missing[start][:6], 16),
                "base": who == "base",
                "suite": suite,
            }
            kept.add(
                (who, how, adapters[who]),
                some,
                scored_groups(policy, task, [*some.values()], batch_size=_BATCH, **own),
            )
            lock.beat()
            progress(number * len(rows) - len(missing) + start + len(some), len(passes) * len(rows))
    kept.save()  # of what was measured before, something else may be asked for now
    evaluation = kept.evaluation()
    run.write_json("evaluation.json", evaluation.found)
    return evaluation


def _checkpoints(run: RunDirectory, asked: Sequence[int | str] | str) -> dict[str, Path]:
    saved = {folder.name[11:]: folder for folder in reversed(run.saved())}
    chosen = (
        [*saved]
        if asked == "all"
        else [str(step).strip() for step in (asked.split(",") if isinstance(asked, str) else asked)]
    )
    if "best" in chosen:
        step = run.best.name[5:]
        saved, chosen = (
            {step: run.best, **saved},
            [
                step,
                *(each for each in chosen if each != "best"),
            ],
        )
    if missing := [step for step in chosen if step not in saved]:
        rule = (
            "a checkpoint is named by its step, and save_total_limit in the recipe says how many"
            " are kept"
        )
        remedy = f"choose from {', '.join(saved) or 'none'}"
        raise RunError(
            f"{run.name}: no checkpoint of step {missing[0]!r}", rule=rule, remedy=remedy
        )
    return {f"checkpoint-{step}": saved[step] for step in sorted(set(chosen), key=int)}


def read_evaluation(run: RunDirectory) -> Evaluation:
    """What `evaluate` measured last on this run, every completion of it; no policy is loaded.

    RunError if it has not been evaluated, or only in part, or if its adapter has changed since.
    """
    kept = _Kept.open(run)
    evaluation = kept.evaluation()
    if (adapter := run._saved_adapter()) and kept.asked["adapters"]["trained"] != adapter_sum(
        adapter
    ):
        value, rule = (
            f"{shown(run.path / FILE)}: measured on an older adapter",
            "a gain belongs to the run's current adapter",
        )
        raise RunError(
            value,
            rule=rule,
            remedy=f"`workbench eval {run.name}` measures the one that is there now",
        )
    return evaluation


def last_measured(run: RunDirectory) -> Fields | None:
    """What `evaluation.json` holds; None if there is none, or if it belongs to an adapter from
    before the run resumed.
    """
    if not (run.path / "evaluation.json").is_file():
        return None
    asked, adapter = _Kept.open(run).asked, run._saved_adapter()
    older = asked and adapter and asked["adapters"]["trained"] != adapter_sum(adapter)
    return None if older else run.read_json("evaluation.json")


@dataclass
class _Kept:
    # A run's evaluation.parquet: the rows of each prompt, by (who, how, the adapter's sum, the
    # prompt's row). Its metadata says under which `settings` they were measured, and which of them
    # were `asked` for last.
    run: RunDirectory
    settings: Fields
    asked: Fields = field(default_factory=dict)
    groups: dict[tuple[str, ...], Group] = field(default_factory=dict)

    @classmethod
    def open(cls, run: RunDirectory, settings: Fields | None = None) -> _Kept:
        # Of other `settings` than the file's, which None stands for, nothing is kept.
        import pyarrow.parquet as pq

        for file in (run.path / FILE, *sorted(run.path.glob(_ASIDE.format("*")))):
            # none yet, or a file of another kind
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                table = pq.read_table(file)
                kept = cls(run, **json.loads(table.schema.metadata[b"workbench"]))
                if settings in (None, kept.settings):
                    for row in table.to_pylist():
                        kept.groups.setdefault(
                            (row["who"], row["how"], row["adapter"], row["row"]), []
                        ).append(row)
                    return kept
            if settings is None:
                break
        return cls(run, settings or {})

    def make_room(self) -> None:
        """Set an evaluation under other settings aside, where `open` finds it again; a larger one
        is not lost to a smaller.
        """
        if not (other := self.open(self.run)).settings or other.settings == self.settings:
            return
        own = hashlib.sha256(json.dumps(other.settings, sort_keys=True).encode()).hexdigest()[:8]
        renamed(self.run.path / FILE, aside := self.run.path / _ASIDE.format(own))
        size = (
            f"{len(other.asked.get('rows', ()))} prompts x {other.settings.get('samples')}"
            " completions"
        )
        print(
            f"measured before under other settings, {size}: kept in {aside.name}, and read again"
            " when requested"
        )

    def add(self, whose: tuple[str, ...], rows: dict[str, Row], groups: list[Group]) -> None:
        who, how, adapter = whose
        for (key, row), group in zip(rows.items(), groups, strict=True):
            self.groups[*whose, key] = completion_rows(
                row, group, who=who, how=how, adapter=adapter, row=key
            )
        self.save()

    def save(self) -> None:
        rows = [row for group in self.groups.values() for row in group]
        write_completions(
            self.run.path / FILE, rows, {"settings": self.settings, "asked": self.asked}
        )

    def evaluation(self) -> Evaluation:
        def of(who: str, how: str = "sampled") -> Measured:
            return _measured(
                [
                    self.groups[who, how, self.asked["adapters"][who], row]
                    for row in self.asked["rows"]
                ],
                rows[0],
            )

        try:
            asked = [
                self.groups["base", "sampled", self.asked["adapters"]["base"], row][0]
                for row in self.asked["rows"]
            ]
            rows = [
                {
                    **json.loads(row["columns"]),
                    "prompt": json.loads(row["prompt"]),
                    "prompt_id": row["prompt_id"],
                }
                for row in asked
            ]
            before, after = of("base"), of("trained")
            curve = {
                int(who[11:]): of(who)
                for who in self.asked["adapters"]
                if who.startswith("checkpoint-")
            }
            greedy = (
                (of("base", "greedy"), of("trained", "greedy")) if self.asked["greedy"] else None
            )
        except KeyError:
            value, rule = (
                f"{shown(self.run.path / FILE)}: not there, or not whole",
                "an evaluation is measured, then read",
            )
            raise RunError(
                value,
                rule=rule,
                remedy=f"`workbench eval {self.run.name}` measures what is missing",
            ) from None
        curve = {0: before, **curve, self.asked["steps"]: after} if curve else {}
        return Evaluation(
            [row["prompt"] for row in rows],
            before,
            after,
            self.settings["right_by"],
            greedy,
            curve,
            rows,
        )


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
    rows = _held_out(task, task.held_out if rows is None else rows)
    sampling = {"batch_size": _BATCH, **sampling}
    return _measured(
        scored_groups(policy, task, rows, RewardSuite(task, samples, weights), samples, **sampling),
        rows[0],
    )


def _measured(groups: list[Group], row: Row) -> Measured:
    def column(name: str) -> Any:
        return (
            None
            if groups[0][0][name] is None
            else np.array([[row[name] for row in group] for group in groups])
        )

    texts = [[row["completion"] for row in group] for group in groups]
    tag = parse_format(row).answer_tag or "answer"
    return Measured(
        texts, column("right"), column("format"), column("finished"), column("total"), tag
    )


def _held_out(task: Task, rows: Sequence[Row]) -> Sequence[Row]:
    if not len(rows):
        value, remedy = (
            f"task {task.name!r}: 0 held-out prompts",
            "give the task held_out rows; notebook 01 splits them off",
        )
        raise DataError(
            value, rule="a policy is measured on prompts that it was not trained on", remedy=remedy
        )
    return rows


def gain_in_words(found: Fields) -> str:
    """The gain in an `evaluation.json`, in a line. Where the two cannot differ, +0 from 0 to 0
    would not be a result.
    """
    before, after, gain = found["before"], found["after"], found["gain"]
    if before["correct_lenient"] == after["correct_lenient"] == 0:
        who = found.get("right_by") or "the function that decides"
        nothing = f"{who} held nowhere" if ">=" in who else f"{who} paid nothing anywhere"
        return f"no completion was right, before or after: {nothing}, so no gain can be measured"
    if before["correct"] == after["correct"] == 0:
        return (
            "no completion was both right and in the strict format, before or after, so no gain can"
            " be measured"
        )
    if before["correct"] == after["correct"] == 1:
        return (
            "every completion was right, before and after: there is nothing left to gain on these"
            " prompts"
        )
    return (
        f"gain {100 * gain['correct']:+.0f} points, 95 % interval"
        f" {statistics.in_points(gain['low'], gain['high'])}"
    )
