"""A gallery of broken runs: twenty that are made for real, to be named, repaired and
trained again: eighteen in seconds, and two of a real model in minutes.

    case = gallery.Case("run_01")
    run = case.make()               # trains it; the panel is all that is shown
    case.diagnose("cut")            # one of ILLNESSES; a wrong one is answered from the record
    case.repair({"grpo": {...}})    # trains again: is the threshold reached?

Each is a folder of `notebooks/teaching/broken` with a `recipe.yaml` and a `task.py`; what ails it
stands in `cases.yaml` there.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from workbench.base.errors import WorkbenchError, nearest
from workbench.base.notebook import notebooks_folder
from workbench.data.prompts import question
from workbench.exporting.making import export
from workbench.exporting.proving import prove
from workbench.health.summary import StepSummary, summaries_of
from workbench.inspection.evaluation import measure_policy
from workbench.recipe import Recipe
from workbench.rewards.groups import ALL_RIGHT, ALL_WRONG, CANCELLED, SAME_SCORE
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.task import Row, Task, fingerprint
from workbench.tasks.loading import load_task
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import Policy, load_policy
from workbench.training.trainer import train

_FOLDER = notebooks_folder() / "teaching" / "broken"
_KNOWN = yaml.safe_load((_FOLDER / "cases.yaml").read_text(encoding="utf-8"))
CASES: tuple[str, ...] = tuple(_KNOWN["cases"])
# what each diagnosis means
ILLNESSES: dict[str, str] = {name: own["is"] for name, own in _KNOWN["illnesses"].items()}
# of a repaired run, at most; and those at a run's end that say what it has come to
STEPS, END = 15, 5


class NotYet(WorkbenchError, AssertionError):
    """A blank that is empty, a diagnosis that is wrong, or a repair that misses the threshold."""


@functools.cache  # loaded once
class Fresh:
    """One policy for many runs: in 32 bits, which a CPU computes fastest, and with its first
    adapter for each.
    """

    def __init__(self, backend: str = "unsloth", name: str = "tiny") -> None:
        self.policy = load_policy(name, backend=backend, load_in_4bit=False, dtype="float32")
        self._first = {name: value.detach().clone() for name, value in trained(self.policy)}
        self._before: dict[str, float] = {}

    def __call__(self) -> Policy:
        import torch

        with torch.no_grad():
            for name, value in trained(self.policy):
                value.copy_(self._first[name])
        self.policy.trained_in.clear()
        return self.policy

    def gain(self, rows: Sequence[Row]) -> float:
        """By how much more of the answers to these prompts are right and in the strict format than
        without the adapter.
        """
        self.policy.tokenizer.chat_template_kwargs = {}
        how: dict[str, Any] = {"samples": 2, "max_completion_length": 64}
        after = measure_policy(self.policy, arithmetic(2, 2), rows, **how).correct.mean()
        if (key := fingerprint(rows)) not in self._before:
            self._before[key] = measure_policy(
                self.policy, arithmetic(2, 2), rows, base=True, **how
            ).correct.mean()
        return float(after - self._before[key])


def trained(policy: Policy) -> list[tuple[str, Any]]:
    """The parameters of the adapter, by name."""
    return [(name, value) for name, value in policy.model.named_parameters() if value.requires_grad]


class Case:
    """A broken run. `was` and `reached`: its measure when it was made, and after the last repair;
    `least`: the threshold.
    """

    def __init__(self, name: str, backend: str = "unsloth", seed: int = 0) -> None:
        self.name = name
        self.backend = backend
        self.run: RunDirectory | None = None  # not made yet
        self.was = self.reached = 0.0  # of no run yet
        known = _KNOWN["cases"][name]
        self.illness: str = known["illness"]
        self.least: float = known["least"]
        self._measure: str = known["measure"]
        self._look: str = known["look"]
        source = _FOLDER / name / "task.py"
        recipe = Recipe.load(_FOLDER / name / "recipe.yaml")
        policy = recipe.policy.model_copy(update={"backend": backend})
        self.recipe = recipe.model_copy(
            update={"task": str(source), "policy": policy, "seed": seed}
        )
        self.task = load_task(source)

    def make(self) -> RunDirectory:
        """Train it as its recipe says: the broken run."""
        self.run = train(self.recipe, policy=self._fresh()(), task=self.task)
        if self._measure == "proof":
            self.export = export(self.run, ["merged_16bit"])["merged_16bit"].path
            shutil.copyfile(MODEL_DIR / "model.safetensors", self.export / "model.safetensors")
        self.was = self._measured(self.run, self.task)
        return self.run

    def diagnose(self, illness: Any) -> None:
        """Check a diagnosis, one of `ILLNESSES`; NotYet says why it is not that one, as the record
        shows.
        """
        if illness not in ILLNESSES:
            value = (
                "no diagnosis yet" if illness is ... else f"{illness!r}: no illness of that name"
            )
            remedy = nearest(str(illness), ILLNESSES, f"look at {self._look}")
            raise NotYet(
                f"{self.name}: {value}",
                rule=f"an illness is one of {', '.join(ILLNESSES)}",
                remedy=remedy,
            )
        if illness != self.illness:
            shows = _KNOWN["illnesses"][illness]["shows"].format_map(facts(self._made(), self.task))
            remedy = f"where that is true, something else is the cause of it: look at {self._look}"
            raise NotYet(
                f"{self.name}: not {illness}. {shows}",
                rule=f"{illness}: {ILLNESSES[illness]}",
                remedy=remedy,
            )
        print(f"{self.name}: yes, {illness}: {ILLNESSES[illness]}")

    def repair(self, changes: Any) -> RunDirectory:
        """Train again with changed fields of `Recipe` or `Task`, or prove the folder of a new
        export; NotYet below `least`.
        """
        if changes is ... or not changes:
            raise NotYet(
                f"{self.name}: no repair yet",
                rule="something has to change",
                remedy=f"look at {self._look}",
            )
        run, task = self._made(), self.task
        if self._measure == "proof":
            self.export = Path(changes)
        else:
            fields = {field.name for field in dataclasses.fields(Task)} - {*Recipe.model_fields}
            of_task = {name: changes[name] for name in changes if name in fields}
            asked = self.recipe.model_dump()
            for name in changes.keys() - of_task.keys():
                merged = isinstance(changes[name], dict)
                asked[name] = {**asked.get(name, {}), **changes[name]} if merged else changes[name]
            asked["run_name"] = f"{self.name}-repaired"
            asked["grpo"] |= {"max_steps": min(STEPS, self.recipe.grpo["max_steps"])}
            if "reward_funcs" in of_task:
                of_task = {"right_by": None, "format_by": None, "reward_weights": None, **of_task}
            task = dataclasses.replace(task, **of_task)
            run = train(Recipe.of(asked), policy=self._fresh()(), task=task, watchers=[])
        self.reached = self._measured(run, task)
        says = (
            f"{_KNOWN['measures'][self._measure]}: {self.was:.0%} before, {self.reached:.0%} now,"
            f" {self.least:.0%} asked for"
        )
        if self.reached < self.least:
            raise NotYet(
                f"{self.name}: {says}",
                rule="a repair reaches what is asked for",
                remedy=f"look at {self._look}",
            )
        print(f"{self.name} is repaired: {says}")
        return run

    def _made(self) -> RunDirectory:
        if self.run is None:
            raise NotYet(
                f"{self.name}: no run yet",
                rule="a case is made before it is named or repaired",
                remedy="run its first cell: run = case.make()",
            )
        return self.run

    def _fresh(self) -> Fresh:
        return Fresh(self.backend, self.recipe.policy.name)

    def _measured(self, run: RunDirectory, task: Task) -> float:
        if self._measure == "gain":  # of the policy as the run has just left it
            return self._fresh().gain(task.held_out)
        if self._measure == "teaching":
            return 1 - statistics.fmean(
                batch.dead_count / batch.group_count for batch in summaries_of(run)[-2 * END :]
            )
        if self._measure == "right":
            return statistics.fmean(
                batch.right / batch.completions for batch in summaries_of(run)[-END:]
            )
        if self._measure == "own":
            return 1 - _answered(run)
        if self._measure == "heard":
            return _heard(run)
        if self._measure == "alike":
            return (1 - _unlike(summaries_of(run))) * _various(run)
        if self._measure == "unseen":
            return 1 - len(_seen(task)) / len(task.held_out)
        return float(prove(self.export, prompts=16, run=run).passed)


def facts(run: RunDirectory, task: Task) -> dict[str, Any]:
    """What the record of a run shows; each illness quotes some of it. Changes are from the first
    `END` steps to the last.
    """
    batches, asked, first = summaries_of(run), run.recipe().grpo, next(read_batches(run))
    # the others trained on the same completions
    rows = [row for row in run.metrics() if row.get("reward") is not None]

    def went(of: Callable[[Any], float], form: str = ".0%", of_each: Any = batches) -> str:
        return " -> ".join(
            format(statistics.fmean(map(of, end)), form) for end in (of_each[:END], of_each[-END:])
        )

    def groups(count: Callable[[StepSummary], float]) -> str:
        return went(lambda own: count(own) / own.group_count)

    texts = [
        (text.casefold(), str(answer).casefold())
        for batch in read_batches(run)
        for text, answer in zip(batch.completions, batch.columns["answer"], strict=True)
    ]
    limit = asked["max_completion_length"]
    cut = [own.clipped / own.completions * (own.longest >= limit) for own in batches]
    paid: dict[str, list[float]] = {}
    for own in (function for batch in batches for function in batch.functions):
        paid.setdefault(own.name, []).extend((own.low or 0.0, own.high or 0.0))
    return {"num_iterations": 1, "epsilon": 0.2, "temperature": 1.0, **asked} | {
        "paid": "; ".join(
            f"{name} paid {min(own):.2g} to {max(own):.2g}" for name, own in paid.items()
        ),
        "ends": repr(
            (first.prompts[0] if isinstance(first.prompts[0], str) else question(first.prompts[0]))[
                -24:
            ]
        ),
        "cut": f"{statistics.fmean(cut):.0%}",
        "all_wrong": groups(lambda own: own.dead[ALL_WRONG]),
        "all_right": groups(lambda own: own.dead[ALL_RIGHT] + own.identical_right),
        "tied": groups(
            lambda own: own.dead[SAME_SCORE] + own.dead[ALL_WRONG] + own.dead[CANCELLED]
        ),
        "differ": groups(lambda own: max(function.varies for function in own.functions)),
        "right": went(lambda own: own.right / own.completions),
        "named": f"{statistics.fmean(answer in text for text, answer in texts):.0%}",
        "length": went(lambda own: own.length, ".0f"),
        "distinct": went(lambda own: own.distinct_in_groups),
        "reward": went(lambda row: row["reward"], ".2f", rows),
        "kl": went(lambda row: row["kl"] or 0.0, ".2g", rows) if asked["beta"] else "not measured",
        "longest": repr(max([*read_batches(run)][-1].completions, key=len)[:60]),
        "asked": repr(question(first.prompts[0])),
        "answer": repr(first.columns["answer"][0]),
        "trained_on": _kind(task.rows[0]),
        "held_out": _kind(task.held_out[0]),
        "answered": f"{_answered(run):.0%}",
        "heard": f"{_heard(run):.0%}",
        "unlike": f"{_unlike(batches):.0%}",
        "seen": f"{len(_seen(task))} of {len(task.held_out)}",
        "exported": (
            "merged_16bit lies in its export folder"
            if run.export.is_dir()
            else "nothing was exported"
        ),
    }


def _answered(run: RunDirectory) -> float:
    # The share of completions in which the policy's words, a line each turn, hold an answer.
    answer = re.compile(r"(?m)(?:^|</tool_call>)(?:higher|lower|right)\b")
    texts = [text for batch in read_batches(run) for text in batch.completions]
    return statistics.fmean(bool(answer.search(text)) for text in texts)


def _heard(run: RunDirectory) -> float:
    # The share of completions in which somebody other than the policy speaks.
    batches = [*read_batches(run)]
    authors = [{turn.author for turn in turns} for batch in batches for turns in batch.turns]
    return sum(len(own) > 1 for own in authors) / sum(len(own.completions) for own in batches)


def _unlike(batches: Sequence[StepSummary]) -> float:
    # Of the groups in which two made the same first call, the share in which they got different
    # answers.
    seen = [batch.calls.answers for batch in batches if batch.calls]
    return sum(own.unlike for own in seen) / max(1, sum(own.groups for own in seen))


def _various(run: RunDirectory) -> bool:
    # Whether two games answered the same first call differently; else all of them may be one game.
    answers: dict[str, set[object]] = {}
    for turns in (own for batch in read_batches(run) for own in batch.turns):
        for call in turns[0].calls[:1] if turns else ():
            answers.setdefault(f"{call.name}{call.arguments}", set()).add(call.result)
    return any(len(own - {None}) > 1 for own in answers.values())


def _kind(row: Row) -> str:
    return (
        "plain text"
        if isinstance(row["prompt"], str)
        else "chats of " + " and ".join(own["role"] for own in row["prompt"])
    )


def _seen(task: Task) -> list[Row]:
    # Held-out prompts with the numbers of a training prompt, in whatever order; without numbers,
    # with its text.
    asked = {id(row): question(row["prompt"]) for row in [*task.rows, *task.held_out]}
    numbers = {key: sorted(re.findall(r"\d+", text)) or text for key, text in asked.items()}
    numbers = {key: str(own) for key, own in numbers.items()}
    known = {numbers[id(row)] for row in task.rows}
    return [row for row in task.held_out if numbers[id(row)] in known]
