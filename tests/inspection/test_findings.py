"""What notebook 04 finds by itself: planted regressions, causes, prompts never mixed, hacks; and nothing where nothing is."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from planted import (
    any_answer_reward,
    because_reward,
    correctness_reward,
    evaluation,
    format_reward,
    healthy,
    measured,
    one_answer_reward,
    planted,
    rows,
)

from workbench import inspection
from workbench.base.errors import DataError, RunError
from workbench.base.instruments import TABLE
from workbench.health import examine_run
from workbench.inspection.causes import cause
from workbench.inspection.compared import diff_as_text
from workbench.inspection.measured import Evaluation
from workbench.rewards.groups import batch_of
from workbench.run.rollouts import columns_of, read_batches, write_part
from workbench.views.display import view_of

ROSE = "from the first to the last third of the steps reward without its format rose by "


def test_five_planted_regressions_of_200_come_first_with_both_texts_and_the_words_that_changed():
    before = np.random.default_rng(0).random((200, 4)) < 0.3
    before[:, 0] |= before.sum(axis=1) == 4  # some are solved before
    after = np.ones((200, 4), bool)
    broken = [3, 50, 77, 120, 199]
    before[broken], after[broken] = True, False
    found = inspection.regressions(evaluation(before, after))
    asked = rows(200)
    assert sorted(found.frame["prompt"][:5]) == sorted(asked[place]["prompt"][-1]["content"] for place in broken)
    assert set(found.frame["change"][:5]) == {-1.0}
    assert (found.frame["change"][5:] >= 0).all()
    solved = int((before.mean(axis=1) > 0.5).sum()) - 5
    assert (found.numbers["fixed"], found.numbers["broken"], found.numbers["neither"]) == (195 - solved, 5, solved)
    assert found.verdict.startswith(f"fixed {195 - solved}, broken 5, neither {solved} of 200 prompts")
    first = found.frame.iloc[0]
    number = next(row["answer"] for row in asked if row["prompt"][-1]["content"] == first["prompt"])
    assert (first["text_before"], first["text_after"]) == (f"<answer>{number}</answer>", "<answer>0</answer>")
    assert diff_as_text(first["text_before"], first["text_after"]) == f"<answer>[-{number}-]{{+0+}}</answer>"
    page = view_of(found)._repr_html_()
    assert f">{number}</del><ins" in page
    assert "text after" not in page  # the words that changed have it, and a narrow page has room for the rest
    assert "&lt;answer&gt;" in page
    assert "<answer>" not in page


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("a b", "a b", "a b"),
        ("", "x", "{+x+}"),
        ("x\ny", "x\nz", "x\n[-y-]{+z+}"),
        ("15 + 27 = 32.", "15 + 27 = 42.", "15 + 27 = [-32-]{+42+}."),
    ],
)
def test_the_words_that_changed(before, after, words):
    assert diff_as_text(before, after) == words


def test_two_trained_policies_are_compared_on_the_prompts_that_they_share():
    same = np.ones((4, 2), bool)
    one, other = evaluation(same, same), evaluation(same, same & (np.arange(4) != 2)[:, None])
    other.prompts[0] = "another prompt"
    found = inspection.regressions(one, other)
    assert (len(found), found.numbers["broken"], found.frame["prompt"][0]) == (3, 1, "What is 12 + 13?")
    other.prompts[:] = ["other"] * 4
    with pytest.raises(DataError, match="0 prompts in common"):
        inspection.regressions(one, other)


ROW = rows(1)[0] | {"prompt": [{"role": "system", "content": "Write <answer>the number</answer>."},
                              {"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "finished", "kept", "why"),
    [
        ("<answer>4", False, False, "cut at the limit"),
        ("  \n", True, False, "empty"),
        ("I'm sorry, I can't help with that.", True, False, "refusal"),
        ("答案是四十二，因为十五加二十七", True, False, "no tags"),
        ("42", True, False, "no tags"),
        ("<answer>42", True, False, "tags incomplete"),
        ("<answer> </answer>", True, True, "no answer in it"),
        ("<answer>42</answer> <answer>", True, True, "right answer, no reward"),
        ("so <answer>42</answer>", True, False, "right answer, format not kept"),
        ("<answer>32</answer>", True, True, "off by a carry"),
        ("<answer>52</answer>", True, True, "off by a carry"),
        ("<answer>43</answer>", True, True, "wrong number"),
        ("<answer>-42</answer>", True, True, "wrong number"),
        ("<answer>27</answer>", True, True, "wrong number"),
        ("<answer>What is 15 + 27?</answer>", True, True, "copied the question"),
        ("What is 15 + 27? <answer>42</answer>", True, True, "right answer, no reward"),
        ("<answer>77</answer>", True, True, "wrong number"),
        ("<answer>a lot of it</answer>", True, True, "other"),
        ("<answer>nan</answer>", True, True, "other"),
        ("<answer>1e999</answer>", True, True, "other"),
        ("<answer>1042</answer>", True, True, "wrong number"),
        ("<answer>42.0</answer>", True, True, "right answer, no reward"),
        ("Sorry, but I must decline.", True, False, "refusal"),
        ("I can’t help with 15 of these.", True, False, "refusal"),
    ],
)
def test_the_cause_of_a_failure_is_read_off_its_text(text, finished, kept, why):
    assert cause(ROW, text, finished, kept, ROW["answer"]) == why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Positive: just fine", "names the right answer"),
        ("**Positive**.", "names the right answer"),
        ("It is unpositive.", "other"),
        ("reserved or wasted", "other"),
        ("The soup left me smiling. One word: positive or negative?", "copied the question"),
    ],
)
def test_an_answer_in_words_is_looked_for_as_words(text, why):
    row = {"prompt": [{"role": "user", "content": "The soup left me smiling. One word: positive or negative?"}]}
    assert cause(row, text, True, None, "positive") == why


def test_two_checkpoints_of_an_evaluation_are_compared():
    made = evaluation(np.zeros((4, 2), bool), np.ones((4, 2), bool))
    between = measured(np.array([[True, True], [True, True], [False, False], [False, False]]))
    made = replace(made, curve={0: made.before, 10: between, 20: made.after})
    assert inspection.regressions(made, steps=(10, 20)).numbers["fixed"] == 2
    with pytest.raises(DataError, match="step 5: not in the evaluation"):
        inspection.regressions(made, steps=(5, 20))


WORDY = "Tom has 12 apples and 5 pears. He eats 7 apples. How many apples are left?"


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("He can't eat pears.\n#### 7", "5", "wrong number"),  # a number of the question, in a problem of several steps
        ("#### $5", "5", "right answer, no reward"),
        ("#### 5.00", "He eats 7 of 12.\n#### 5", "right answer, no reward"),
        ("I won't lose. \\boxed{15}", "\\boxed{5}", "wrong number"),
        ("", "5", "empty"),
    ],
)
def test_answers_of_word_problems_are_not_taken_for_slips_of_a_sum(text, answer, why):
    assert cause({"prompt": WORDY}, text, True, None, answer) == why


def test_causes_are_counted_and_their_trend_told(home):
    def text_of(step, row, draw):
        if step < 20:
            return "no idea…"  # all of the first quarter are cut
        return f"<answer>{row['answer'] if step < 60 else int(row['answer']) + 10}</answer>"

    found = inspection.failures(planted("r", text_of, steps=80))
    assert found.frame["cause"].tolist() == ["cut at the limit", "off by a carry"]
    assert found.frame["count"].tolist() == [20 * 32, 20 * 32]
    assert found.frame[["first", "last"]].values.tolist() == [[1.0, 0.0], [0.0, pytest.approx(20 / 21, abs=0.06)]]
    assert found.verdict == "1,280 of 2,560 completions are wrong: cut at the limit 50%, off by a carry 50%"
    assert "no idea" in view_of(found)._repr_html_()


def test_causes_of_an_evaluation_are_the_trained_policys_beside_the_bases():
    before = np.zeros((4, 2), bool)
    after = before.copy()
    after[:3] = True
    found = inspection.failures(evaluation(before, after))
    assert found.frame["cause"].tolist() == ["wrong number"]
    assert found.frame[["count", "first", "last"]].values.tolist() == [[2, 1.0, 0.25]]


def test_a_prompt_through_time_and_those_that_never_had_a_mixed_group(home):
    def text_of(step, row, draw):
        which = int(row["prompt_id"][1:])
        right = which == 11 or (which == 12 and step >= 30) or (which > 13 and draw.random() < 0.5)
        return f"<answer>{row['answer'] if right else 0}</answer>"

    run = planted("r", text_of, steps=60, asked=rows(12))
    found = inspection.never_mixed(run)
    assert sorted(zip(found.frame["prompt_id"], found.frame["kind"])) == [
        ("p10", "never right"), ("p11", "always right"), ("p13", "never right"),
    ]  # fmt: skip
    assert found.numbers == {"prompts": 12, "often": 12, "never_right": 2, "always_right": 1, "now_right": 1}
    assert found.frame["groups"].tolist() == [40, 40, 40]
    assert len(inspection.never_mixed(run, least=41)) == 0
    # One group each is no evidence of how hard a prompt is.
    assert ["too hard" in inspection.never_mixed(run, least=least).verdict for least in (1, 2)] == [False, True]
    learnt = inspection.through_time(run, "p12")
    assert len(learnt) == 40
    assert learnt.frame["right"].tolist() == [0] * 20 + [4] * 20
    assert learnt.frame["rewards"].tolist()[0] == "0.5 0.5 0.5 0.5"
    assert learnt.numbers["solved_at"] == learnt.frame["step"][20]
    assert len(inspection.through_time(run, "What is 12 + 13?")) == 40
    with pytest.raises(RunError, match="12 prompts on record fit"):
        inspection.through_time(run, "What is")
    with pytest.raises(RunError, match="0 prompts on record fit"):
        inspection.through_time(run, "p99")


def test_a_planted_hack_is_named_with_its_text(home):
    def text_of(step, row, draw):
        if draw.random() < step / 60:
            return f"because {' because ' * draw.randint(2, 5)} {draw.randint(0, 99)}"
        return healthy(20, row, draw)

    functions = (correctness_reward, format_reward, because_reward)
    found = inspection.hacking(planted("r", text_of, functions))
    assert len(found.numbers["signs"]) == 2
    assert found.verdict.startswith(f"REWARD HACKING? {ROSE}")
    assert "completions that are wrong and earn as much as right ones rose from" in found.verdict
    assert all("because" in text for text in found.frame["example"][:5])
    assert found.frame["count"].is_monotonic_decreasing


def test_what_counts_as_right_and_no_longer_satisfies_an_unweighted_function_is_named(home):
    def text_of(step, row, draw):
        if draw.random() < step / 60:  # a hedge: it holds the right number, among others
            return " ".join(f"<answer>{n}</answer>" for n in range(int(row["answer"]) - 2, int(row["answer"]) + 3))
        return f"<answer>{int(row['answer']) + draw.choice([0, 10])}</answer>"

    run = planted("r", text_of, (any_answer_reward, format_reward, one_answer_reward), (1.0, 1.0, 0.0))
    found = inspection.hacking(run)
    assert [sign.partition(", ")[2].split()[0] for sign in found.numbers["signs"]] == ["one_answer_reward"]
    assert found.verdict.startswith("REWARD HACKING? of completions that count as right, one_answer_reward (weight 0) pays")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_no_hack_is_named_in_a_healthy_run(home, seed):
    functions = (correctness_reward, format_reward, because_reward)
    found = inspection.hacking(planted("r", healthy, functions, (2.0, 1.0, 0.0), seed=seed))
    assert found.numbers["signs"] == []
    assert len(found) == 0


def test_a_reward_that_rises_while_right_answers_stay_as_they_are_is_named(home):
    def text_of(step, row, draw):
        right = f"<answer>{row['answer'] if draw.random() < 0.5 else 0}</answer>"
        return right + " because" * (draw.random() < step / 60)

    found = inspection.hacking(planted("r", text_of, (correctness_reward, format_reward, because_reward)))
    assert found.numbers["right"][1] < 0 < found.numbers["right"][2]  # nothing can be told of these by themselves
    assert found.numbers["signs"][0].startswith(ROSE)


def test_a_format_that_is_learnt_is_no_hack(home):
    def nothing_right(step, row, draw):
        return "<answer>0</answer>" if draw.random() < 0.1 + 0.8 * step / 60 else "0"

    found = inspection.hacking(planted("none", nothing_right))
    assert found.verdict.endswith("did not rise beyond chance")

    def some_right(step, row, draw):
        answer = row["answer"] if draw.random() < 0.7 else 0
        return f"<answer>{answer}</answer>" if draw.random() < 0.2 + 0.75 * step / 60 else f"{answer}"

    assert inspection.hacking(planted("some", some_right, weights=(0.2, 1.0))).numbers["signs"] == []


def test_an_unweighted_function_that_stays_flat_while_the_reward_rises_is_told(home):
    def text_of(step, row, draw):
        texts = [f"<answer>{row['answer'] if draw.random() < 0.5 else 0}</answer>"]
        return texts[0] + " because because" * (draw.random() < step / 60)

    def any_reward(completions, **kwargs):
        return because_reward(completions)

    run = planted("r", text_of, (any_reward, correctness_reward, format_reward), (1.0, 0.0, 0.0))
    found = inspection.hacking(run)  # which of the two is meant, only a person can tell
    assert (found.numbers["signs"], len(found.numbers["flat"])) == ([], 1)
    assert "; while it rose, correctness_reward (weight 0) changed by" in found.verdict


def test_stages_with_other_functions_are_told_apart_and_few_steps_are_said_to_be_few(home):
    run = planted("r", healthy, steps=4)
    [*_, last] = read_batches(run)
    same = {"step": 5, "stage": "2", "prompts": last.prompts, "columns": last.columns, "lengths": last.lengths}
    batch = batch_of(["other_reward"], [1.0], last.scores[:, :1], last.completions, last.right, 4, **same)
    write_part(run.rollouts, 5, columns_of(batch), ["other_reward"])
    assert inspection.hacking(run).verdict.startswith("reward hacking cannot be told yet: that takes 8 groups")
    assert "score.other_reward" in inspection.browse(run).frame.columns
    assert "score.correctness_reward" in inspection.browse(run).frame.columns
    assert inspection.write_report(run).is_file()


def test_where_nobody_has_said_what_is_right_everything_that_speaks_of_it_says_so(home):
    run = planted("r", healthy, steps=24)
    words = [lambda: [each.line for each in examine_run(run)], lambda: [inspection.hacking(run).verdict]]
    words += [lambda: [inspection.failures(run).verdict], lambda: [inspection.never_mixed(run).verdict]]
    words += [lambda: [inspection.through_time(run, "p10").verdict]]
    if "several" in TABLE:
        words += [lambda: [inspection.compare_runs(run, run).prompts.verdict]]
    before = [of() for of in words]
    assert "'right' here" not in str(before)
    known = {"right_by": "correctness_reward", "right_by_default": True}
    run.update_manifest(task={**run.manifest()["task"], **known})
    for of, lines in zip(words, before, strict=True):
        means = " ('right' here: correctness_reward > 0)"
        spoken = [line + means if re.search(r"\b(right|wrong)\b", line) else line for line in lines]
        assert of() == spoken
        assert spoken != lines


def test_a_hack_shows_on_held_out_prompts(home):
    run = planted("r", healthy, steps=6)
    flat = np.zeros((100, 4), bool)
    flat[:30] = True
    measured_ = evaluation(flat, flat)
    paid = Evaluation(measured_.prompts, measured_.before, replace(measured_.after, total=flat + 1.0))
    assert len(inspection.hacking(run, paid).numbers["signs"]) == 1
    assert inspection.hacking(run, measured_).numbers["signs"] == []
    none = evaluation(flat & False, flat & False)
    paid = Evaluation(none.prompts, none.before, replace(none.after, total=flat + 1.0))
    (sign,) = inspection.hacking(run, paid).numbers["signs"]
    assert sign.endswith("no completion was right, before or after")
