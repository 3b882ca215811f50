"""What next: each answer with the command that does it, the most urgent first."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
from commanding import workbench
from planted import because_reward, correctness_reward, format_reward, planted
from running import Running

import workbench as wb
from workbench.base.errors import RunError
from workbench.base.instruments import TABLE
from workbench.health.verdicts import ALARM, CASES, Verdict
from workbench.inspection.hacks import hacking
from workbench.inspection.measured import Evaluation, Measured
from workbench.inspection.next import next_steps


def evaluation(before: float, after: float, prompts: int = 40, samples: int = 4) -> Evaluation:
    """Of a policy right in these shares of the completions of each prompt."""

    def measured(share: float) -> Measured:
        flags = np.zeros((prompts, samples), dtype=bool)
        flags[:, : round(share * samples)] = True
        return Measured([["x"] * samples] * prompts, flags, None, np.ones_like(flags), flags * 1.0)

    return Evaluation(["p"] * prompts, measured(before), measured(after))


@pytest.fixture
def run(home):
    running = Running("one", 10)
    for _ in range(3):
        running.step()
    ended = running.finish()
    (ended.checkpoints / "final").mkdir(parents=True)
    (ended.checkpoints / "final" / "adapter_config.json").write_text("{}")
    return ended


def by_question(run, measured=None) -> dict[str, tuple[str, str]]:
    frame = wb.inspection.what_next(run, measured).frame
    return {row.question: (row.answer, row.command) for row in frame.itertuples()}


def test_without_an_evaluation_it_asks_for_one(run):
    told = by_question(run)
    assert shlex.split(told["train further?"][1]) == ["workbench", "eval", "one"]
    assert told["worth keeping?"][1] == told["train further?"][1]


@pytest.mark.parametrize(
    ("before", "after", "train_on", "keep"),
    [(0.25, 0.75, "continue", "export"), (0.25, 1.0, "export", "export"), (0.5, 0.25, "continue", "report")],
)
def test_the_rung_and_the_gain_decide(run, before, after, train_on, keep):
    told = by_question(run, evaluation(before, after))
    assert shlex.split(told["train further?"][1])[1] == train_on
    assert shlex.split(told["worth keeping?"][1])[1] == keep
    assert ("worse" in told["worth keeping?"][0]) == (after < before)


def test_answers_to_write_are_named_and_no_command_is_given_that_would_be_refused(run):
    answer, command = by_question(run, evaluation(0, 0))["train further?"]
    assert command == ""
    assert "source: reference" in answer and "ideal=" in answer  # noqa: PT018  one thing to do


def test_a_warm_start_begins_from_the_adapter_that_the_run_left(run):
    measured = evaluation(0, 0, samples=8)
    measured.after.lenient[:2, 0] = True
    words = shlex.split(by_question(run, measured)["train further?"][1])
    assert words[:2] == ["workbench", "train"]
    sets = dict(word.split("=", 1) for word in words if "=" in word)
    assert sets["policy.adapter"].endswith("final")
    assert sets["warm_start"] == "32"


def test_a_run_that_was_stopped_is_finished_first(home):
    running = Running("short", 10)
    running.step()
    told = by_question(running.finish("stopped"), evaluation(0.25, 0.75))
    assert told["finish it?"][1] == told["train further?"][1] == "workbench continue short"


def test_an_attached_run_is_given_no_command_that_refuses_it(run):
    run.update_manifest(attached=True)
    told = by_question(run)
    assert "train further?" not in told
    assert told["worth keeping?"][1] == ""


def test_a_hack_comes_first_and_no_twin_is_named_that_would_be_refused(home):
    def gamed(step, row, draw):
        right = f"<answer>{row['answer'] if draw.random() < 0.5 else 0}</answer>"
        return right + " because" * (draw.random() < step / 60)

    gamed_run = planted("r", gamed, (correctness_reward, format_reward, because_reward))
    gamed_run.lock.release()
    gamed_run.write_json("result.json", {"status": "finished", "steps": 60})
    gamed_run.update_manifest(recipe={})
    hacks = hacking(gamed_run)
    assert hacks.numbers["twin"] == "workbench twin r --mute because_reward"
    alarms = [Verdict("kl_runaway", ALARM, "it runs away"), Verdict("truncation", ALARM, "all were cut")]
    told = next_steps(gamed_run, evaluation(0.5, 0.5), alarms, hacks).frame
    # a hack ends in KL that runs away; where all were cut there is nothing to tell it by
    assert told["question"].tolist()[:3] == ["clipped completions?", "was the reward hacked?", "runaway KL?"]
    answer, command = told.loc[1, ["answer", "command"]]
    assert command == ""
    if "twin" not in TABLE:
        return
    assert "'not \"right\"' did not grow" in answer  # as `workbench twin` itself would say
    assert "--sign" in answer


def test_never_right_comes_first_and_an_alarm_has_a_command_that_acts(run):
    cause = CASES["all wrong"]["cause"]
    never = Verdict("dead_groups", ALARM, "12 of 16 groups teach nothing", cause=cause, remedy="take easier prompts")
    cut = Verdict("truncation", ALARM, "all were cut", {"max_completion_length": 64}, remedy="raise max_completion_length")
    runaway = Verdict("kl_runaway", ALARM, "it runs away")
    told = next_steps(run, None, [never, cut, runaway], None).frame
    assert told["question"].tolist()[:3] == ["dead groups?", "clipped completions?", "runaway KL?"]
    probe, longer, watch = map(shlex.split, told["command"][:3])
    assert probe == ["workbench", "probe", run.recipe().task]
    assert longer[:2] == ["workbench", "train"]
    assert longer[-1] == "grpo.max_completion_length=128"
    assert watch[:2] == ["workbench", "watch"]
    run.update_manifest(attached=True)
    assert set(next_steps(run, None, [never, cut], None).frame["command"][:2]) == {""}


def test_a_run_that_trains_is_refused(home):
    running = Running("live", 10)
    running.step()
    with pytest.raises(RunError, match="live"):
        wb.inspection.what_next(running.run)
    running.finish()


def test_every_command_is_one_that_there_is(run):
    for measured in (None, evaluation(0.25, 0.75), evaluation(0, 0)):
        for _, command in by_question(run, measured).values():
            if not command:
                continue
            name = shlex.split(command)[1]
            assert workbench(name, "--help").returncode == 0
