"""Measuring a policy on held-out prompts, and comparing two of them on the same prompts.

Several completions per prompt, at the training temperature: GRPO trains a distribution, not its likeliest completion.
`evaluation.parquet` keeps every one, a row each, and grows batch by batch: what a kill leaves is not measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.data.difficulty import row_key
from workbench.errors import DataError, RunError
from workbench.inspection import statistics
from workbench.inspection.reading import changed_since, question
from workbench.inspection.statistics import paired_difference, share_interval
from workbench.progress import progress_line
from workbench.rewards.answers import find_answer
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task, load_task
from workbench.training.loading import put_on
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import sample
from workbench.workspace import replace_file, shown

FILE = "evaluation.parquet"
_BATCH = 128  # completions generated together
Group = list[dict[str, Any]]  # the rows of one prompt's completions


@dataclass(frozen=True)
class Measured:
    """A policy on P prompts, G completions each. Arrays are [P, G]."""

    completions: list[list[str]]
    lenient: np.ndarray  # bool: right, whatever the format
    format: np.ndarray | None  # bool: keeps the strict format; None where the task does not measure it
    finished: np.ndarray  # bool: ended before the limit
    total: np.ndarray  # weighted reward
    tokens: np.ndarray | None = None  # number of them, the one that ends the turn included
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # of each function; NaN: it did not apply

    @property
    def correct(self) -> np.ndarray:
        """Right, and in the strict format where there is one: [P, G] bool."""
        return self.lenient if self.format is None else self.lenient & self.format

    def shares(self) -> dict[str, float | None]:
        """The shares of all completions: `correct` (strict), `correct_lenient`, `format`, `finished`; mean `reward`."""
        counted = {"correct": self.correct, "correct_lenient": self.lenient, "format": self.format, "finished": self.finished}
        shares = {name: None if flags is None else float(flags.mean()) for name, flags in counted.items()}
        return {**shares, "reward": float(np.nanmean(self.total))}

    def pass_at_k(self) -> np.ndarray:
        """[P, G]: strict pass@k of each prompt, for k = 1 to G."""
        return statistics.pass_at_k(self.correct.sum(axis=1), self.correct.shape[1])

    def majority(self) -> float:
        """The share of prompts whose most frequent answer is correct: what is in tags, after a mark or in a box, else all."""
        answers = [[_answer(text) for text in group] for group in self.completions]
        return float(statistics.majority(answers, self.correct).mean())


def _answer(text: str) -> str:
    return next(filter(None, (find_answer(text, where) for where in ("tag", "mark", "boxed"))), text.strip())


def _both(of: Callable[[Measured], Any], before: Measured, after: Measured) -> dict[str, Any]:
    return {"before": of(before), "after": of(after)}


class Examples(NamedTuple):
    """(held-out prompt, the base's first completion, the trained policy's); a cell shows them as a table."""

    rows: list[tuple[str, str, str]]

    def __str__(self) -> str:
        return "\n\n".join(f"{prompt}\n  base:    {base!r}\n  trained: {trained!r}" for prompt, base, trained in self.rows)

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Base and trained policy on the same held-out prompts; a cell shows the shares before and after, pass@k, and the gain."""

    prompts: list[Any]
    before: Measured
    after: Measured
    right_by: str = ""  # the function that said which completions are right
    greedy: tuple[Measured, Measured] | None = None  # base and trained, one completion a prompt: the likeliest tokens
    curve: dict[int, Measured] = field(default_factory=dict)  # by step; 0: base. Empty where no checkpoints were asked for

    @cached_property
    def found(self) -> dict[str, Any]:
        """What `evaluation.json` holds: the shares before and after, the paired gain, and what can be said of it."""
        before, after = self.before.correct, self.after.correct
        (prompts, samples), ends = before.shape, ("correct", "low", "high")
        low, high = map(float, statistics.bootstrap_interval(after.mean(axis=1) - before.mean(axis=1)))
        fixed = statistics.mcnemar(*(own.correct[:, 0] for own in self.greedy)) if self.greedy else None
        return {
            **_both(Measured.shares, self.before, self.after),
            "gain": dict(zip(ends, paired_difference(before, after), strict=True)),
            "prompts": prompts,
            "samples": samples,
            "right_by": self.right_by,
            "bootstrap": {"low": low, "high": high},
            "detectable": statistics.detectable(prompts, samples),
            "needed": statistics.needed(before, after),
            "pass_at_k": _both(lambda own: own.pass_at_k().mean(axis=0).tolist(), self.before, self.after),
            "majority": _both(Measured.majority, self.before, self.after),
            "best_of": _both(lambda own: float(statistics.best_of(own.total, own.correct).mean()), self.before, self.after),
            "verdict": dict(zip(("word", "why"), statistics.taught_or_sharpened(before, after), strict=True)),
            "greedy": _both(Measured.shares, *self.greedy) if self.greedy else None,
            "mcnemar": fixed and dict(zip(("fixed", "broken", "p"), fixed, strict=True)),
            "curve": [
                {"step": step, **dict(zip(ends, share_interval(own.correct), strict=True))} for step, own in self.curve.items()
            ],
        }

    @property
    def pairs(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(what is counted, before, after), arrays [P, G] of bools."""
        counted = {"correct, strict format": "correct", "correct, lenient": "lenient", "strict format": "format"}
        pairs = [(label, getattr(self.before, of), getattr(self.after, of)) for label, of in counted.items()]
        return [pair for pair in pairs if pair[1] is not None and pair[2] is not None]

    def examples(self, count: int = 4) -> Examples:
        """The first prompts, each with one completion of the base and one of the trained policy."""
        some = zip(self.prompts[:count], self.before.completions, self.after.completions, strict=False)
        return Examples([(question(prompt), before[0], after[0]) for prompt, before, after in some])

    def __str__(self) -> str:
        found, n = self.found, self.found["samples"]
        old, new, verdict = found["before"], found["after"], found["verdict"]
        lines = [f"{gain_in_words(found)}; {found['prompts']} held-out prompts, {n} completions each"]
        if found["needed"] and not found["gain"]["low"] > 0:
            lines.append(f"the interval holds 0: about {found['needed']:,} more prompts would be needed to tell such a gain")
        lines.append(f"{verdict['word']}: {verdict['why']}")
        lines.append(f"mean reward {old['reward']:.2f} -> {new['reward']:.2f}")
        lines[-1] += f"; ended before the limit {old['finished']:.0%} -> {new['finished']:.0%}"
        if n > 1:
            ks = [2**power for power in range(n.bit_length())]
            curves = (", ".join(f"{own[k - 1]:.0%}" for k in ks) for own in found["pass_at_k"].values())
            lines.append(f"pass@{', '.join(map(str, ks))}: {' -> '.join(curves)}")
            said = {f"majority of {n}": found["majority"], f"best of {n} by the training reward": found["best_of"]}
            lines.append("; ".join(f"{name} {own['before']:.0%} -> {own['after']:.0%}" for name, own in said.items()))
        if greedy := found["greedy"]:
            changed = "{fixed} prompts fixed, {broken} broken, exact McNemar p = {p:.2g}".format(**found["mcnemar"])
            lines.append(f"greedy {greedy['before']['correct']:.0%} -> {greedy['after']['correct']:.0%}: {changed}")
        lines += [f"step {own['step']}: {own['correct']:.0%} ({own['low']:.0%} to {own['high']:.0%})" for own in found["curve"]]
        bootstrap = " to ".join(f"{100 * end:+.0f}" for end in found["bootstrap"].values())
        return "\n".join([*lines, f"the gain's interval by bootstrap over prompts (BCa): {bootstrap}"])

    __repr__ = __str__


def evaluate(
    run: RunDirectory,
    task: Task | None = None,
    *,
    held_out: int = 200,
    samples: int = 4,
    seed: int = 0,
    greedy: bool = False,
    checkpoints: Sequence[int] | str = (),
    progress: Callable[[str], Callable[[int, int], None]] = progress_line,
) -> Evaluation:
    """Measure what a run bought: its base and its trained policy on held-out prompts that neither was trained on.

    >>> evaluation = wb.evaluate(wb.open_run(), held_out=8, samples=1)
    >>> print(evaluation)
    ...

    The policy is loaded on the run's own backend, and sampled at the temperature and length limit of training. Leaves
    `evaluation.json` and, in `evaluation.parquet`, every completion in the run's folder. What is there already is not measured
    again unless adapter, task or settings have changed. What of the task has changed since the run is printed as a warning.

    Args:
        task: the run's task; None: loaded from its recipe.
        held_out: measure on at most this many prompts.
        samples: completions per prompt; 16 or more tell whether it was taught or sharpened.
        greedy: take the likeliest tokens, too, once a prompt.
        checkpoints: steps of checkpoints to measure besides, or "all".
        progress: name of what begins -> what is called with (prompts measured, prompts in all).

    Raises:
        RunError: if the run has no adapter, or no such checkpoint; or is one of your own trainer, and `task` is None.
        DataError: if the task has no held-out prompts.
    """
    if task is None and run.manifest().get("attached"):
        value = f"{run.name}: recorded from your own trainer, so no task of the workbench belongs to it"
        remedy = "hand one over: wb.evaluate(run, task=wb.Task(..., held_out=rows))"
        raise RunError(value, rule="held-out prompts are scored by a task's reward functions", remedy=remedy)
    recipe, in_force = run.recipe(), run.manifest()["settings"]["in_force"]
    task = task or load_task(recipe.task)
    rows = {row_key(row): row for row in _held_out(task, task.with_ids(task.held_out))[:held_out]}
    adapters = {"base": None, "trained": run.adapter, **_checkpoints(run, checkpoints)}
    for line in changed_since(run, task):
        print(f"WARNING: {line}")
    print(f"with {len(rows)} prompts x {samples} completions you can tell a gain of", end=" ")
    print(f"about {100 * statistics.detectable(len(rows), samples):+.0f} points")
    policy = load_policy(recipe, adapter=run.adapter)
    print(policy)
    sampling = {"seed": seed, **{name: in_force[name] for name in ("max_completion_length", "temperature")}}
    ways = {"sampled": {**sampling, "samples": samples}}
    if greedy:
        ways["greedy"] = {**sampling, "samples": 1, "temperature": 0.0}
    with contextlib.closing(RewardSuite(task, samples, recipe.reward_weights)) as suite:
        settings = {name: getattr(policy, name) for name in ("name", "precision", "compute_dtype", "chat_template_kwargs")}
        settings |= {"rewards": suite.hash, "right_by": task.right_function, "format_by": task.format_by, **ways["sampled"]}
        kept = _Kept.open(run, settings)
        asked = {name: folder and _sum_of(folder) for name, folder in adapters.items()}
        kept.asked = {"rows": [*rows], "adapters": asked, "greedy": greedy, "steps": run.result()["steps"]}
        for who, folder in adapters.items():
            if folder and folder != run.adapter:
                put_on(policy.model, folder)
            for how, sampled in ways.items():
                wanted = [key for key in rows if kept.key(who, how, key) not in kept.groups]
                size, update = max(1, _BATCH // sampled["samples"]), progress(f"{who}, {how}")
                for start in range(0, len(wanted), size):
                    keys = wanted[start : start + size]
                    # A seed of the batch's own: what goes on after a kill ends as if it had not been.
                    own = {**sampled, "seed": seed + int(keys[0][:6], 16), "base": folder is None, "batch_size": _BATCH}
                    measured = measure(policy, task, [rows[key] for key in keys], suite=suite, **own)
                    kept.add(who, how, {key: rows[key] for key in keys}, measured)
                    update(len(rows) - len(wanted) + start + len(keys), len(rows))
    kept.save()  # nothing new may have been measured, and yet another choice of it be asked for
    evaluation = kept.evaluation()
    run.write_json("evaluation.json", evaluation.found)
    return evaluation


def _checkpoints(run: RunDirectory, asked: Sequence[int] | str) -> dict[str, Path]:
    saved = {int(folder.name[11:]): folder for folder in reversed(run.saved())}
    chosen = [*saved] if asked == "all" else sorted(map(int, asked))
    if missing := [step for step in chosen if step not in saved]:
        rule, remedy = "a checkpoint is named by its step", f"choose from {', '.join(map(str, saved)) or 'none'}"
        raise RunError(f"{run.name}: no checkpoint of step {missing[0]}", rule=rule, remedy=remedy)
    return {saved[step].name: saved[step] for step in chosen}


def _sum_of(adapter: Path) -> str:
    with (adapter / "adapter_model.safetensors").open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def read_evaluation(run: RunDirectory) -> Evaluation:
    """What `evaluate` measured last on this run, every completion of it; no policy is loaded.

    RunError if it has not been evaluated, or only in part.
    """
    return _Kept.open(run).evaluation()


@dataclass
class _Kept:
    # A run's evaluation.parquet: a group of rows for each prompt, policy and way to sample. Its metadata says under which
    # `settings` they were measured, and which of them were `asked` for last.
    run: RunDirectory
    settings: dict[str, Any]
    asked: dict[str, Any]
    groups: dict[tuple[str, ...], Group] = field(default_factory=dict)

    @classmethod
    def open(cls, run: RunDirectory, settings: dict[str, Any] | None = None) -> _Kept:
        # None: the settings of the file. What was measured under others is left out.
        import pyarrow as pa
        import pyarrow.parquet as pq

        kept, settings_are = cls(run, settings or {}, {}), json.dumps(settings, sort_keys=True)
        with contextlib.suppress(OSError, pa.ArrowException, KeyError, ValueError):  # none yet, or no file of this kind
            table = pq.read_table(run.path / FILE)
            measured = json.loads(table.schema.metadata[b"workbench"])
            if settings is None or json.dumps(measured["settings"], sort_keys=True) == settings_are:
                kept.settings, kept.asked = measured["settings"], measured["asked"]
                for row in table.to_pylist():
                    kept.groups.setdefault((row["who"], row["how"], row["adapter"], row["row"]), []).append(row)
        return kept

    def key(self, who: str, how: str, row: str) -> tuple[str, ...]:
        return who, how, self.asked["adapters"][who] or "", row

    def add(self, who: str, how: str, rows: dict[str, Row], measured: Measured) -> None:
        for place, (name, row) in enumerate(rows.items()):
            key = self.key(who, how, name)
            same = dict(zip(("who", "how", "adapter", "row"), key, strict=True))
            same |= {"prompt_id": row["prompt_id"], "prompt": json.dumps(row["prompt"])}
            flags = {"finished": measured.finished, "total": measured.total, "right": measured.lenient}
            flags |= {"length_tokens": measured.tokens, "format": measured.format}
            flags |= {f"score.{name}": own for name, own in measured.scores.items()}
            self.groups[key] = [
                same
                | {"generation": number, "completion": text.encode("utf-8", "backslashreplace").decode()}
                | {name: None if of is None else of[place, number].item() for name, of in flags.items()}
                for number, text in enumerate(measured.completions[place])
            ]
        self.save()

    def save(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist([row for group in self.groups.values() for row in group])
        about = {"workbench": json.dumps({"settings": self.settings, "asked": self.asked})}
        with replace_file(self.run.path / FILE) as beside:
            pq.write_table(table.replace_schema_metadata(about), beside, compression="zstd")

    def evaluation(self) -> Evaluation:
        def of(who: str, how: str = "sampled") -> Measured:
            return _measured([self.groups[self.key(who, how, row)] for row in self.asked["rows"]])

        try:
            before, after = of("base"), of("trained")
            both = (of("base", "greedy"), of("trained", "greedy")) if self.asked["greedy"] else None
            between = {int(name[11:]): of(name) for name in self.asked["adapters"] if name.startswith("checkpoint-")}
            prompts = [json.loads(self.groups[self.key("base", "sampled", row)][0]["prompt"]) for row in self.asked["rows"]]
        except KeyError:
            value, rule = f"{shown(self.run.path / FILE)}: not there, or not whole", "a run is measured before that is read"
            raise RunError(value, rule=rule, remedy=f"`workbench eval {self.run.name}` measures what is missing") from None
        curve = {0: before, **between, self.asked["steps"]: after} if between else {}
        return Evaluation(prompts, before, after, self.settings["right_by"], both, curve)


def _measured(groups: list[Group]) -> Measured:
    def column(name: str, kind: type) -> np.ndarray:
        return np.array([[row[name] for row in group] for group in groups], dtype=kind)

    first = groups[0][0]
    return Measured(
        completions=[[row["completion"] for row in group] for group in groups],
        lenient=column("right", bool),
        format=None if first["format"] is None else column("format", bool),
        finished=column("finished", bool),
        total=column("total", float),
        tokens=column("length_tokens", int),
        scores={name.partition(".")[2]: column(name, float) for name in first if name.startswith("score.")},
    )


def measure(
    policy: Policy,
    task: Task,
    rows: Sequence[Row] | None = None,
    *,
    weights: dict[str, float] | None = None,
    samples: int = 4,
    suite: RewardSuite | None = None,
    **sampling: Any,
) -> Measured:
    """Sample `samples` completions for each held-out prompt and score them with the task's own functions.

    Args:
        rows: prompts; None: the task's held-out rows. DataError if there are none.
        weights: of the reward functions, where they differ from the task's: the recipe's `reward_weights`.
        suite: made of the task and the weights already.
        sampling: for `sample`: `max_completion_length`, `temperature`, `seed`, `base`, `batch_size`, `progress`.
    """
    rows = _held_out(task, task.held_out if rows is None else rows)
    sampled = sample(policy, [row["prompt"] for row in rows], num_generations=samples, **{"batch_size": _BATCH, **sampling})
    suite = suite or RewardSuite(task, samples, weights)
    flat = [completion for group in sampled for completion in group]
    scores = suite.score([row for row in rows for _ in range(samples)], [c.text for c in flat], [c.ids for c in flat])
    shape, by_name = (len(rows), samples), dict(zip(suite.names, scores.T, strict=True))
    return Measured(
        completions=[[completion.text for completion in group] for group in sampled],
        lenient=(by_name[task.right_function] > 0).reshape(shape),
        format=None if task.format_by is None else (by_name[task.format_by] > 0).reshape(shape),
        finished=np.array([completion.finished for completion in flat]).reshape(shape),
        total=np.nansum(scores * suite.weights, axis=1).reshape(shape),
        tokens=np.array([len(completion.ids) for completion in flat]).reshape(shape),
        scores={name: own.reshape(shape) for name, own in by_name.items()},
    )


def _held_out(task: Task, rows: Sequence[Row]) -> Sequence[Row]:
    if not len(rows):
        value, remedy = f"task {task.name!r}: 0 held-out prompts", "give the task held_out rows; notebook 01 splits them off"
        raise DataError(value, rule="a policy is measured on prompts that it was not trained on", remedy=remedy)
    return rows


def gain_in_words(found: dict[str, Any]) -> str:
    """The gain that an `evaluation.json` holds, in a line. Where the two cannot differ, +0 from 0 to 0 would be no result."""
    before, after, gain = found["before"], found["after"], found["gain"]
    if before["correct_lenient"] == after["correct_lenient"] == 0:
        who = found.get("right_by") or "the function that decides"
        return f"no completion was right, before or after: {who} paid nothing anywhere, so no gain can be measured"
    if before["correct"] == after["correct"] == 0:
        return "no completion was both right and in the strict format, before or after, so no gain can be measured"
    if before["correct"] == after["correct"] == 1:
        return "every completion was right, before and after: these prompts leave nothing to gain"
    return f"gain {100 * gain['correct']:+.0f} points, 95 % interval {100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}"
