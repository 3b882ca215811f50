"""One result of every kind that shows itself in a cell, each full of text that must stay text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hostile import HOSTILE
from running import TASK, Running

from workbench.base.instruments import TABLE
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of, explain_in

FORMULAS = "costs $5 and then $6, \\(x\\), $$y$$"
EVIL = f"{FORMULAS} </pre><script>window.hacked=1</script><img src=x onerror=window.hacked=1> {HOSTILE}\ud800"


def scored():
    return batch_of([f"{EVIL}_reward"], [1.0], [[1.0], [0.0]], [EVIL, "no"], [True, False], 2, prompts=[EVIL, EVIL])


def rows():
    from workbench.data.sources import Rows

    found = Rows([{"prompt": EVIL, "answer": EVIL}])
    found.name = EVIL
    return found


def template_card():
    from workbench.data.template import TemplateCard, Token

    tokens = [Token(1, "<s>", True), Token(2, EVIL, False)]
    return TemplateCard(EVIL, tokens, True, {"<b>": True}, {2: EVIL}, True, None, True, False, [EVIL])


def lengths():
    from workbench.data.rendering import PromptLengths

    return PromptLengths([{"prompt": EVIL}] * 3, [4, 5, 9], EVIL)


def profile():
    from workbench.data.difficulty import Profile, Solved

    return Profile({"num_generations": 4}, {"x": Solved(1, 4, 4), "y": Solved(4, 4, 4)})


def audit():
    from workbench.audit.examination import audit_rewards
    from workbench.task import Task

    def tag_reward(completions, **kwargs):
        return [1.0 if "<answer>" in text else 0.0 for text in completions]

    rows = [{"prompt": f"{EVIL} write <answer>x</answer>", "answer": "4"}]
    return audit_rewards(Task(EVIL, rows, [tag_reward], probes={EVIL: f"<answer>{EVIL}"}))


def memory():
    from workbench.memory import estimate
    from workbench.training.plan.settings.values import DEFAULTS

    return estimate(Recipe(policy={"name": "tiny"}), dict(DEFAULTS), vram_gb=16.0)


def run():
    running = Running("r", 10)
    running.step()
    running.suite.close()
    return running.run


def verdicts():
    from workbench.health import ALARM, Verdict
    from workbench.health.diagnosis import Verdicts

    return Verdicts([Verdict("non_finite", ALARM, EVIL, cause=EVIL, remedy=EVIL, prompts=(EVIL,))])


def evaluation():
    from workbench.inspection.measured import Evaluation, Measured

    ones = np.ones((2, 2), dtype=bool)
    measured = [Measured([[EVIL] * 2] * 2, right, ones, ones, 1.0 * right) for right in (~ones, ones)]
    return Evaluation([EVIL, EVIL], *measured, right_by=EVIL)


def over_levels():
    from workbench.instruments.games.over_levels import LevelShares, OverLevels

    ones = np.ones((4, 2), dtype=bool)
    points = [LevelShares.of(level, (~ones, ones), (~ones, ones)) for level in (0, 1, 2)]
    return OverLevels(EVIL, 1, points, 3, 2)


def duel():
    from workbench.instruments.duel.fighting import Duel
    from workbench.instruments.duel.planning import Arm, DuelPlan

    arms = tuple(Arm(name, Recipe(), TASK, 4, "") for name in (EVIL, "other"))
    solved = np.array([True, False] * 4)
    pair = [{0: ~solved, 4: ~solved}, {0: ~solved, 4: solved | ~solved}]
    return Duel(DuelPlan(arms, 3, 4, 24, 1, Path("runs")), [pair] * 3)


def twin():
    import pandas

    from workbench.instruments.twin.growing import Twin
    from workbench.instruments.twin.planning import TwinPlan
    from workbench.instruments.twin.signs import Sign
    from workbench.run.directory import RunDirectory

    groups = pandas.DataFrame({"step": range(1, 41), "group": [0] * 40, "value": [0.0, 0.5] * 10 + [0.5, 1.0] * 10})
    sign = Sign(f"completion like '{EVIL}'", True, groups, 1, 10)
    run = RunDirectory(Path("runs") / "hacked")
    plan = TwinPlan(run, Path("runs") / "twin", Recipe(), TASK, {}, [EVIL], EVIL, None, sign, 10, 40)
    return Twin(plan, groups.assign(value=groups["value"] / 4), equal=False)


def judge_trial():
    from workbench.instruments.judge.judging import Spent
    from workbench.instruments.judge.measures import FAILED, JudgeMeasure
    from workbench.instruments.judge.trial import JudgeTrial

    failed = JudgeMeasure("position", EVIL, 0.1, "most", EVIL, EVIL, FAILED, 8, 0.5, 0.2, 0.8)
    untold = JudgeMeasure("verbosity", EVIL, 0.1, "either", EVIL, EVIL)
    price = {"completions": 64, "warming": 0, "calls": 64, "tokens": 640, "cost": 0.0, "minutes": 1.0}
    return JudgeTrial(f"{EVIL}_reward", EVIL, EVIL, "", "", 4, [failed, untold], Spent(calls=9), price)


def recorded_group():
    from workbench.inspection.reading import RecordedGroup

    return RecordedGroup(3, EVIL, EVIL, explain_in(scored()))


def listing():
    from workbench.inspection import regressions

    return regressions(evaluation())


def token_view():
    from workbench.inspection.tokens import TokenView

    return TokenView(EVIL, [EVIL, "x"], np.log([0.5, 0.25]), np.log([0.5, 0.5]), 1.0, EVIL)


def comparison():
    from workbench.inspection import compare_runs

    one, other = (Running(name, 4) for name in ("one", "other"))
    for running in (one, other):
        running._text = lambda answer, good: PRINTED
        running.step()
        running.finish()
    return compare_runs(one.run, other.run)


def proof():
    from workbench.exporting.checks import Check, Proof

    pair = {"policy": 0.9, "artefact": 0.2, "difference": -0.7, "low": -0.8, "high": -0.6, "base": 0.3}
    checks = (
        Check("files", EVIL, True, EVIL),
        Check("weights", EVIL, False, EVIL, "other_weights", EVIL, {EVIL: EVIL}),
        Check("behaviour", EVIL, None, EVIL, EVIL),
    )
    return Proof(EVIL, "merged_16bit", checks, (EVIL,), {"reward": pair, "pass@1": pair, "ended": pair}, EVIL)


def proofs():
    from workbench.exporting.checks import Proofs

    return Proofs([proof(), proof()])


def merge_risk():
    from workbench.exporting.risk import MergeRisk

    return MergeRisk({f"layers.0.{EVIL}": 2.0, "layers.0.q_proj": 0.02}, EVIL, "dequantised")


def replayed():
    from workbench.inspection.replaying import replay

    running = Running("r", 10)
    running.step()
    running.finish()
    return replay(running.run, TASK, {"format_reward": 2.0})


def plan():
    from workbench.training.plan.prepare import plan

    return plan(Recipe(run_name="p", task="arithmetic", grpo={"max_steps": 2, "num_generations": 4}))


def boxes():
    from workbench.instruments.checklist.ticking import Box, Checklist

    return Checklist([Box("during", EVIL, state, EVIL, EVIL) for state in ("ticked", "open", "cannot be told")])


SAMPLES = {
    "workbench.instruments.checklist.ticking.Checklist": boxes,
    "workbench.training.plan.Plan": plan,
    "workbench.exporting.checks.Proof": proof,
    "workbench.exporting.checks.Proofs": proofs,
    "workbench.exporting.risk.MergeRisk": merge_risk,
    "workbench.health.diagnosis.Verdicts": verdicts,
    "workbench.instruments.games.over_levels.OverLevels": over_levels,
    "workbench.instruments.duel.fighting.Duel": duel,
    "workbench.instruments.twin.growing.Twin": twin,
    "workbench.instruments.judge.trial.JudgeTrial": judge_trial,
    "workbench.inspection.measured.Evaluation": evaluation,
    "workbench.inspection.reading.RecordedGroup": recorded_group,
    "workbench.inspection.reading.Listing": listing,
    "workbench.inspection.tokens.TokenView": token_view,
    "workbench.instruments.several.comparing.Comparison": comparison,
    "workbench.inspection.replaying.Replay": replayed,
    "workbench.audit.examination.RewardAudit": audit,
    "workbench.data.sources.Rows": rows,
    "workbench.data.template.TemplateCard": template_card,
    "workbench.data.rendering.PromptLengths": lengths,
    "workbench.data.difficulty.Profile": profile,
    "workbench.memory.estimate.MemoryEstimate": memory,
    "workbench.rewards.groups.ExplainedGroup": lambda: explain_in(scored()),
    "workbench.run.batch.ScoredBatch": scored,
    "workbench.run.directory.RunDirectory": run,
}
# Of the instruments that are there.
SAMPLES = {name: sample for name, sample in SAMPLES.items() if name.split(".")[1] != "instruments" or name.split(".")[2] in TABLE}


PRINTED = EVIL.removesuffix("\ud800")  # what a tokenizer may decode, and a file hold


def evil_reward(completions, **kwargs):
    return [float(len(text[0]["content"] if isinstance(text, list) else text)) for text in completions]


def hostile_run(name: str = "r") -> Running:
    """A run of two steps whose completions and events are hostile; it goes on until it is told to finish."""
    running = Running(name, 4)
    running._text = lambda answer, good: f"{PRINTED} {running.rng.random()}"
    for _ in range(2):
        running.step()
    running.run.log_event("control", 2, action="weight", by=PRINTED, applied=False, function=PRINTED, why=PRINTED)
    return running


def lab():
    """The lab of a task whose prompts, answers, probes and function are hostile."""
    from workbench.task import Task
    from workbench.views.lab import Lab

    evil_reward.__name__ = f"{PRINTED}_reward"
    rows = [{"prompt": [{"role": "user", "content": f"{EVIL} {n}"}], "answer": EVIL} for n in range(3)]
    return Lab(Task(EVIL, rows, [evil_reward], probes={EVIL: EVIL}), [PRINTED, ""])


def live_plot(running: Running):
    """The plot of a run, as in the cell that trains it."""
    from types import SimpleNamespace

    from workbench.views.live import LivePlot

    plot = LivePlot()
    plot.begin(running.run, 4, {"beta": 0.0})
    batch = replace(scored(), step=2)
    plot.verdicts(list(verdicts()))
    plot.batch(batch, SimpleNamespace())
    plot.event({"event": "control", "action": "weight", "by": EVIL, "applied": False, "function": EVIL, "why": EVIL})
    plot.end(EVIL)
    return plot
