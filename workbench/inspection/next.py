"""What next? What was found of a run, each with the command that acts on it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from workbench.base.errors import RunError, WorkbenchError
from workbench.base.instruments import places_in, plugged
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import shown
from workbench.health import ALARM, examine_run
from workbench.health.rung import which_rung
from workbench.health.verdicts import CASES, Verdict
from workbench.inspection.evaluation import read_evaluation
from workbench.inspection.hacks import hacking
from workbench.inspection.measured import Evaluation
from workbench.inspection.reading import Listing, needs
from workbench.inspection.statistics import in_points
from workbench.rewards.groups import ALL_WRONG
from workbench.run.directory import RunDirectory

# Alarms under which no sign of a hack means much; most others (KL that runs away) follow from one.
_OF_REWARDS = ("reward_cannot_pay", "one_function", "dead_groups", "format_without_right")
_SPOILED = ("non_finite", "reward_cannot_pay", "truncation")


class Step(NamedTuple):
    """One thing to do next."""

    question: str
    answer: str
    command: str


def what_next(run: RunDirectory, evaluation: Evaluation | None = None) -> Listing:
    """What to do after a run, the most urgent first, each with its reason and a command.

    >>> print(wb.inspection.what_next(wb.open_run()).frame["command"].iloc[-1])
    workbench export ...

    It asks whether the reward was hacked, what health alarms of, which rung the trained policy
    stands on (`which_rung`), whether another reward would do better, and whether it is worth
    keeping. A command is for a terminal, or for a cell after a `!`.

    Args:
        evaluation: of the run; None: the one in its folder, if there is one.

    Returns:
        `frame`: question, answer, command.

    Raises:
        RunError: if the run is training.
    """
    needs(run, RunDirectory)
    run.check_ended()
    with contextlib.suppress(RunError):  # none is kept
        evaluation = evaluation or read_evaluation(run)
    hacks = None
    with contextlib.suppress(WorkbenchError):  # nothing was recorded that could show one
        hacks = hacking(run, evaluation)
    return next_steps(run, evaluation, examine_run(run, last=200), hacks)


class NextSteps(Listing):
    """What to do next; its text is a list, as a table would cut what is advised."""

    def __str__(self) -> str:
        lines = []
        for question, answer, command in self.frame.itertuples(index=False):
            lines += [f"- {question} {answer}", f"  {command}".rstrip()]
        return printable("\n".join(filter(None, lines)))

    __repr__ = __str__


def next_steps(
    run: RunDirectory,
    evaluation: Evaluation | None,
    verdicts: Iterable[Verdict],
    hacks: Listing | None,
) -> Listing:
    """`what_next`, from what has been found of a run that has ended."""
    import pandas as pd

    alarms: dict[bool, list[Step]] = {True: [], False: []}
    for own in verdicts:
        if own.state == ALARM:
            never = own.name == "dead_groups" and own.cause == CASES[ALL_WRONG]["cause"]
            step = Step(f"{own.title}?", own.remedy or own.line, _acts(run, own))
            alarms[never or own.name in _SPOILED].append(step)
    hack = [_hacked(run, hacks.numbers)] if hacks is not None and hacks.numbers["signs"] else []
    steps = [*alarms[True], *hack, *alarms[False]]
    steps += _rung(run, evaluation)
    if "duel" in places_in("commands") and not run.manifest().get("attached"):
        recipe = shlex.quote(shown(run.path / "recipe.yaml"))
        why = (
            "copy the recipe as OTHER.yaml and change its reward; a duel trains both on the same"
            " seeds, until it is decided or the budget is spent"
        )
        steps.append(
            Step("would another reward do better?", why, f"workbench duel {recipe} OTHER.yaml")
        )
    steps.append(_kept_or_not(run, evaluation))
    verdict = f"{steps[0].question} {steps[0].answer}"
    return NextSteps(verdict, pd.DataFrame(steps))


def _acts(run: RunDirectory, alarm: Verdict) -> str:
    # The command that does what the alarm's remedy says; of one's own trainer there is none.
    limit = alarm.evidence.get("max_completion_length")
    if run.manifest().get("attached"):
        return ""
    if alarm.name in _OF_REWARDS:
        return shlex.join(["workbench", "probe", run.recipe().task])
    if not limit:
        return f"workbench watch {run.name}"
    sets = f"--set run_name={run.name}-longer --set grpo.max_completion_length={2 * limit}"
    return f"workbench train {shlex.quote(shown(run.path / 'recipe.yaml'))} {sets}"


def _hacked(run: RunDirectory, found: Fields) -> Step:
    answer, suspect, command = found["signs"][0], found["suspect"], found["twin"]
    twins = plugged("why no twin")
    if not twins:
        command = ""
    elif "--patch" in command:
        answer += f"; FILE is a copy of its task file in which {suspect} is mended"
    elif suspect and (missing := twins["twin"](run, suspect)):
        answer, command = f"{answer}; no twin can tell whether {suspect} was it: {missing}", ""
    return Step("was the reward hacked?", answer, command)


def _rung(run: RunDirectory, evaluation: Evaluation | None) -> list[Step]:
    manifest, result = run.manifest(), run.result()
    if manifest.get("attached"):
        return []
    steps, more = [], f"workbench continue {run.name}"
    if result["status"] != "finished":
        steps = [Step("finish it?", f"{result['status']} after {result['steps']} steps", more)]
    if evaluation is None:
        why = "how often the trained policy is right decides, and has not been measured"
        return [*steps, Step("train further?", why, f"workbench eval {run.name}")]
    rung = which_rung(
        evaluation,
        num_generations=manifest["settings"]["in_force"]["num_generations"],
        warmed="warm_start" in manifest,
        turns=bool(manifest.get("turns")),
    )
    answer, command = rung.words.splitlines()[0], f"workbench export {run.name}"
    if rung.name == "GRPO":
        command = more if steps else f"{more} --steps {max(1, result['steps'])}"
    elif rung.name == "demonstrations":  # which somebody has to write first
        answer, command = f"{answer}; {rung.sets}", ""
    elif rung.sets:
        words = ["workbench", "train", shown(run.path / "recipe.yaml")]
        words += ["--set", f"run_name={run.name}-on"]
        words += ["--set", f"policy.adapter={shown(run.adapter)}"]
        command = shlex.join([*words, "--set", rung.sets.replace(": ", "=", 1)])
    return [*steps, Step("train further?", answer, command)]


def _kept_or_not(run: RunDirectory, evaluation: Evaluation | None) -> Step:
    question = "worth keeping?"
    if evaluation is None and run.manifest().get("attached"):
        return Step(question, "not measured on held-out prompts", "")
    if evaluation is None:
        return Step(question, "not measured on held-out prompts yet", f"workbench eval {run.name}")
    gain = evaluation.found["gain"]
    interval = in_points(gain["low"], gain["high"])
    ends = f"{100 * gain['correct']:+.0f} points, {interval}"
    if gain["low"] > 0:
        return Step(question, f"it gained {ends}", f"workbench export {run.name}")
    more = "more prompts would tell" if gain["high"] > 0 else "it is worse than its base"
    return Step(question, f"no gain is shown, {ends}; {more}", f"workbench report {run.name}")
