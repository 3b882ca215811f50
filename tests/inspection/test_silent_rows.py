"""None means that a function does not apply: what it says nothing of is neither right nor wrong, anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from recording import record

from workbench import inspection
from workbench.health.summary import summaries_of, summarise
from workbench.health.verdicts import counts
from workbench.inspection.kept import measured_of
from workbench.inspection.measured import Evaluation
from workbench.inspection.reading import by_step
from workbench.rewards.groups import ALL_WRONG, SAME_SCORE, batch_of, dead_kinds
from workbench.rewards.right import right_in
from workbench.rewards.suite import RewardSuite
from workbench.run.rollouts import read_batches
from workbench.task import Task


def sum_reward(completions, kind, answer, **kwargs):
    return [float(right in text) if own == "sum" else None for text, own, right in zip(completions, kind, answer)]


def short_reward(completions, kind, **kwargs):
    return [float(len(text) < 6) if own == "short" else None for text, own in zip(completions, kind)]


def row(kind: str, number: int) -> dict:
    return {"prompt": f"{kind} {number}", "prompt_id": f"{kind}{number}", "kind": kind, "answer": "7"}


# A sum with one right of two, a sum with none, and two short ones: one right, and none.
STEP = [
    (row("sum", 1), ["it is 7", "it is 8"]),
    (row("sum", 2), ["it is 8", "it is 9"]),
    (row("short", 1), ["brief", "not brief"]),
    (row("short", 2), ["not so brief", "not brief"]),
]
ROWS = [own for own, _ in STEP]


def recorded(right_by: str | None, steps: int = 2, **more):
    task = Task("kinds", ROWS, [sum_reward, short_reward], right_by=right_by, **more)
    run = record(task, [STEP] * steps)
    about = {"right_by": task.right_function, "right_by_default": not right_by, "answer_column": "answer"}
    run.update_manifest(task=about)
    return run


@pytest.mark.parametrize(
    ("right_by", "wrong", "of", "never", "said"),
    [
        # two steps of four groups of two: nobody said what is right, so short_reward decides where sum_reward does not
        (None, 12, 16, 2, "; sum_reward says nothing of 8 of them, where short_reward decides"),
        ("sum_reward", 6, 8, 1, "; sum_reward says nothing of 8 more, which do not count"),
        ("short_reward", 6, 8, 1, "; short_reward says nothing of 8 more, which do not count"),
    ],
)
def test_what_nothing_is_said_of_is_not_counted_and_who_decides_is_said(home, right_by, wrong, of, never, said):
    run = recorded(right_by)
    found = inspection.failures(run)
    assert (found.numbers["wrong"], found.numbers["completions"]) == (wrong, of)
    assert said in found.verdict
    mixed = inspection.never_mixed(run)
    assert (mixed.numbers["prompts"], mixed.numbers["never_right"]) == (of // 4, never)
    share = (of - wrong) / of
    column = "share_right" if right_by else "share of sum_reward > 0"
    assert by_step(run).frame[column].tolist() == [share, share]
    assert counts(summaries_of(run), "right") == (of - wrong, of)
    batch = next(read_batches(run))
    kinds = batch.shares["mixed"], batch.shares["all wrong"]
    assert kinds == (0.5, 0.5)
    assert summarise(batch).metrics["groups/all_wrong"] == 0.5
    assert batch.right.tolist().count(None) == 8 - of // 2


def test_a_none_among_scores_of_one_prompt_is_not_right_and_a_failure_of_all_is_no_verdict():
    nan = float("nan")
    assert right_in(np.array([[1.0], [nan], [nan], [nan]]), 2).tolist() == [True, False, None, None]
    assert right_in(np.array([[0.5], [0.4]]), 2, 0.5).tolist() == [True, False]
    batch = batch_of(["a", "b"], [1, 1], [[nan, 1]] * 2 + [[0, 1]] * 2, list("abcd"), [None] * 4, 2)
    silent = batch_of(*(batch.names, batch.weights, batch.scores, batch.completions), right_in(batch.scores[:, :1], 2), 2)
    assert dead_kinds(silent) == [SAME_SCORE, ALL_WRONG], "of the first nothing says that it is wrong"


def test_a_metric_of_weight_0_and_the_format_never_say_what_is_right(home):
    def tag_reward(completions, **kwargs):
        return [1.0] * len(completions)

    task = Task("kinds", ROWS, [sum_reward, tag_reward, short_reward], [1.0, 1.0, 0.0], format_by="tag_reward")
    suite, seen = RewardSuite(task, 2), []
    suite.on_batch = seen.append
    call = {"prompts": ["p"] * 2, "completions": ["a", "b"], "kind": ["short"] * 2, "answer": ["7"] * 2}
    for function in suite.funcs:
        function(**call)
    assert seen[0].right.tolist() == [None, None]


def test_hacking_counts_only_what_is_judged(home):
    # wrong short ones earn as much as right sums at the end; nothing says that they are wrong
    def paid(step):
        late = "brief" if step >= 16 else "not so brief"
        return [(row("sum", 1), ["it is 7", "it is 8"]), (row("short", 1), [late, late])]

    task = Task("kinds", ROWS, [sum_reward, short_reward], right_by="sum_reward")
    run = record(task, [paid(step) for step in range(24)])
    run.update_manifest(task={"right_by": "sum_reward"})
    found = inspection.hacking(run)
    assert found.numbers["paid_wrong"].value == 0
    assert not found.numbers["signs"] or "earn as much" not in found.verdict


def test_a_prompt_that_nothing_is_said_of_is_in_no_gain():
    def group(*right):
        return [{"completion": "x", "finished": True, "total": 1.0, "format": None, "right": own} for own in right]

    one = measured_of([group(True, None), group(False, False)], {"prompt": "p"})
    assert one.lenient.tolist() == [[True, False], [False, False]]
    made = Evaluation(["p", "q"], one, one, "sum_reward", silent=3)
    assert made.found["silent"] == 3
    assert "3 more prompts are left out: sum_reward scored no completion of them" in str(made)


def test_followed_through_time_a_silent_prompt_is_neither_solved_nor_unsolved(home):
    run = recorded("sum_reward")
    found = inspection.through_time(run, "short1")
    assert found.numbers["solved_at"] is None
    assert "nothing says whether a completion is right" in found.verdict
    assert "right 50% -> 50%" in inspection.through_time(run, "sum1").verdict
