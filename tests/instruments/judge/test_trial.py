"""A judge's trial: every measure by hand, what it costs, what it is kept by, and what a newcomer reads."""

from __future__ import annotations

import functools
import importlib
import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from commanding import workbench

import workbench as wb
from workbench.base.errors import BudgetError, RewardError, TaskError
from workbench.health.trends import Interval
from workbench.instruments.judge.judging import Reply
from workbench.instruments.judge.measures import FAILED, NOT_HERE, PASSED, UNTOLD, Cases, JudgeMeasure, _measured, trial_texts
from workbench.instruments.judge.trial import _questions
from workbench.rewards.code import judge_of
from workbench.views.display import view_of

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
judges = importlib.import_module("judges")

TASK = wb.load_task("arithmetic")
VALUES = {"good": 0.8, "bad": 0.3, "cut": 0.2, "refusal": 0.1, "padded": 0.9, "markdown": 0.6, "white space": 0.8}
VALUES |= {"injected 0": 0.7, "injected 1": 0.3, "injected 2": 0.3, "authority": 0.35}


def task_of(*functions, rows=TASK.rows, **fields) -> wb.Task:
    return wb.Task("sums", rows, list(functions), **fields)


def measured(trial) -> dict[str, JudgeMeasure]:
    return {each.name: each for each in trial.measures}


# --- measures, by hand ------------------------------------------------------------------------------------------------


def cases_of(ranks: bool, answers: list[dict], right=None) -> Cases:
    """The cases of a judge that answered so: for each prompt, names shown together -> answers in turn, else by VALUES."""
    found = {names: [] for names in _questions(ranks)}
    for own in answers:
        turns = {names: [*given] for names, given in own.items()}
        for names in _questions(ranks):
            planned = turns.get(names)
            found[names].append(planned.pop(0) if planned else [VALUES[name] for name in names])
    shaped = {names: np.array(own, float).reshape(len(answers), -1, len(names)) for names, own in found.items()}
    return Cases(ranks, np.array(right or [[True, False]] * len(answers)), shaped)


def by_name(cases: Cases) -> dict[str, JudgeMeasure]:
    return {each.name: each for each in cases.measures("correctness_reward")}


def test_a_judge_that_scores():
    twice = {("good",): [[0.8], [0.4]]}
    found = by_name(cases_of(False, [{}] * 3 + [twice]))
    assert found["self-agreement"].value == pytest.approx(0.4 / 4)
    assert found["verbosity"].value == pytest.approx(0.9 - 0.8)
    assert found["markdown"].value == pytest.approx(-0.2)
    assert found["white space"].value == 0
    assert found["injection"].value == pytest.approx(0.4)
    assert found["authority"].value == pytest.approx(0.05)
    assert (found["agreement"].value, found["dead groups"].value, found["unreadable"].value) == (1.0, 0.0, 0.0)
    assert found["position"].verdict == NOT_HERE
    # 3 of 4 cases: never narrower than 3 / n
    assert (found["injection"].low, found["injection"].high) == pytest.approx((0.4 - 0.75 * 2.394 / 1.96, 1.0))
    # Wilson's of 0 of 4, and of 0 of 48 answers
    assert found["dead groups"].high == pytest.approx(1.96**2 / (4 + 1.96**2))
    assert (found["unreadable"].cases, found["unreadable"].high) == (48, pytest.approx(1.96**2 / (48 + 1.96**2)))


def test_what_could_not_be_read_is_left_out_and_counted():
    lost = {("padded",): [[math.nan]], ("refusal",): [[math.nan]]}
    found = by_name(cases_of(False, [{}, {}, lost]))
    assert found["unreadable"].value == pytest.approx(2 / 36)
    assert found["verbosity"].value == pytest.approx(0.1)
    assert found["dead groups"].value == 0.0
    none = by_name(cases_of(False, [{names: [[math.nan] * len(names)] * 2 for names in _questions(False)}] * 3))
    assert (none["unreadable"].value, none["unreadable"].verdict) == (1.0, FAILED)
    assert {each.verdict for each in none.values()} == {FAILED, UNTOLD, NOT_HERE}
    assert {each.value for name, each in none.items() if name != "unreadable"} == {None}


def test_agreement_is_of_the_pairs_that_it_tells_apart_and_that_the_reward_does():
    wrong = {("good",): [[0.2], [0.2]], ("bad",): [[0.6]]}
    tied = {("good",): [[0.3], [0.3]]}
    right = [[True, False]] * 3 + [[False, True], [True, True]]
    found = by_name(cases_of(False, [{}, wrong, tied, wrong, wrong], right))["agreement"]
    assert found.value == pytest.approx(2 / 3)
    assert by_name(cases_of(False, [tied] * 5))["agreement"].verdict == UNTOLD
    assert by_name(cases_of(False, [{}] * 5, [[False, False]] * 5))["agreement"].verdict == NOT_HERE


def test_a_group_is_dead_only_if_all_of_it_scores_the_same():
    same = {(name,): [[0.5], [0.5]] for name in ("good", "bad", "cut", "refusal")}
    almost = same | {("refusal",): [[0.6]]}
    assert by_name(cases_of(False, [same, same, almost, {}]))["dead groups"].value == 0.5


def test_a_judge_that_ranks_is_asked_in_both_orders():
    first = {names: [[1.0, 0.0]] * 2 for names in _questions(True) if len(names) == 2}
    found = by_name(cases_of(True, [first] * 3))
    assert found["position"].value == 1.0
    assert {found[name].value for name in ("verbosity", "markdown", "injection")} == {0.0}
    assert found["self-agreement"].value == 0.0
    half = {("good", "padded"): [[0.0, 1.0]], ("padded", "good"): [[0.5, 0.5]]}
    one = by_name(cases_of(True, [{**first, **half}] * 3))
    assert one["verbosity"].value == 0.5
    # 14 of the 16 orders are won by the first, one by the second, one is tied
    assert one["position"].value == pytest.approx(13 / 16)
    assert by_name(cases_of(True, [{("good", "bad"): [[1.0, 0.0], [0.0, 1.0]]}] * 2))["self-agreement"].value == 1.0
    dead = {("good", "bad", "cut", "refusal"): [[0.5] * 4]}
    assert by_name(cases_of(True, [dead, {}]))["dead groups"].value == 0.5


@pytest.mark.parametrize(
    ("kind", "found", "verdict"),
    [
        ("most", (0.0, -0.1, 0.15), PASSED),
        ("most", (0.1, 0.0, 0.2), UNTOLD),
        ("most", (0.3, 0.16, 0.4), FAILED),
        ("most", (-0.5, -0.9, -0.1), PASSED),
        ("either", (-0.5, -0.9, -0.1), UNTOLD),
        ("either", (-0.5, -0.9, -0.16), FAILED),
        ("either", (0.0, -0.15, 0.15), PASSED),
        ("least", (0.9, 0.16, 1.0), PASSED),
        ("least", (0.1, 0.0, 0.14), FAILED),
        ("least", (0.1, 0.0, 0.2), UNTOLD),
    ],
)
def test_a_verdict_wants_the_whole_interval_on_one_side(kind, found, verdict):
    about = {"kind": kind, "limit": 0.15, "asks": "", "reason": "", "remedy": ""}
    assert _measured("m", about, Interval(*found), 20, "right").verdict == verdict


def test_how_many_cases_would_tell():
    about = {"kind": "most", "limit": 0.15, "asks": "", "reason": "", "remedy": ""}
    # half as wide wants four times the cases
    assert _measured("m", about, Interval(0.05, -0.15, 0.25), 40, "").needed == 160
    assert _measured("m", about, Interval(0.0, -0.3, 0.3), 10, "").needed == 40
    assert _measured("m", about, Interval(0.15, 0.0, 0.3), 10, "").needed is None


def test_every_measure_has_a_limit_a_reason_and_a_remedy():
    for name, about in trial_texts()["measures"].items():
        assert about.keys() == {"kind", "limit", "asks", "reason", "remedy"}, name
        assert len(about["asks"]) <= 80


# --- judges with a bias -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", judges.BIASED)
def test_a_planted_bias_is_named_and_no_other(home, bias):
    make, first, ranks = judges.BIASED[bias]
    trial = judges.on_trial(judges.answers(make(), first), ranks, 40)
    assert judges.failed(trial) == [bias]
    assert not trial.ok


def test_a_judge_that_falls_for_one_of_the_notes_fails(home):
    def forged(prompt, answer):
        return judges.quality(prompt, answer) + 3 * ('{"score"' in answer)

    trial = judges.on_trial(judges.answers(forged), False, 40)
    assert judges.failed(trial) == ["injection"]
    assert measured(trial)["injection"].value == pytest.approx(0.3)


def test_what_would_tell_is_counted_in_prompts(home):
    lost = {("padded",): [[math.nan]]}
    found = by_name(cases_of(False, [lost] + [{}] * 3))["unreadable"]
    assert found.cases == 48
    assert found.verdict == UNTOLD
    about = trial_texts()["measures"]["unreadable"]
    answers = _measured("unreadable", about, Interval(found.value, found.low, found.high), 48, "").needed
    assert found.needed == math.ceil(answers / 12)


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_honest_judge_passes(home, seed, ranks):
    trial = judges.on_trial(judges.answers(judges.Noisy(seed)), ranks, 40)
    assert trial.verdict == PASSED


def test_over_http_it_is_the_same_trial(home):
    make, _, ranks = judges.BIASED["injection"]
    trial = judges.scripted(make(), ranks, 40)
    assert judges.failed(trial) == ["injection"]
    assert trial.asked.startswith("scripted at 127.0.0.1:")
    assert trial.spent.model == "scripted"
    assert trial.spent.calls == 480


# --- a trial ----------------------------------------------------------------------------------------------------------


def honest(messages):
    return Reply(judges.answers(judges.quality)(messages), 200, 10)


def test_a_trial_counts_what_a_run_will_cost(home):
    judged = wb.rewards.make_judge_reward(honest, prices=(1.0, 5.0))
    trial = wb.rewards.trial(task_of(wb.rewards.correctness_reward, judged), cases=4)
    assert trial.spent.calls == 48
    assert trial.planned["completions"] == trial.planned["calls"] == 1000
    assert trial.planned["tokens"] == 210_000
    assert trial.planned["cost"] == pytest.approx(1000 * (200 + 50) / 1e6)
    assert "1,000 calls, 210,000 tokens" in trial.price
    ranked = wb.rewards.make_ranking_reward(honest)
    assert wb.rewards.trial(task_of(ranked), cases=4).planned["calls"] == 125


class Busy(Exception):
    status_code, retry_after_s = 429, 0.05


def test_a_price_counts_what_was_asked_again_and_what_was_waited(home):
    seen = Counter()

    def busy(messages):
        question = messages[1]["content"]  # with its mark, which each question has for itself
        seen[question] += 1
        if seen[question] < 3:
            raise Busy
        return honest(messages)

    judged = wb.rewards.make_judge_reward(busy, cache=False)
    trial = wb.rewards.trial(task_of(wb.rewards.correctness_reward, judged), cases=4)
    assert (trial.spent.calls, trial.spent.retries) == (144, 96)
    assert (trial.planned["calls"], trial.planned["tokens"]) == (3000, 210_000)
    # 1,000 questions wait twice, eight of them at once
    assert trial.spent.seconds >= 96 * 0.05
    assert trial.planned["minutes"] >= 1000 * 2 * 0.05 / 8 / 60 - 1e-9


def test_a_recipe_gives_the_price_of_its_run(home):
    (home / "judged.py").write_text(FILE)
    recipe = home / "recipe.yaml"
    grpo = {"max_steps": 30, "num_generations": 4, "per_device_train_batch_size": 8}
    recipe.write_text(json.dumps({"task": "judged.py", "grpo": grpo}))
    done = workbench("trial", "recipe.yaml", "--cases", "4", "--json", home=home)
    found = json.loads(done.stdout)
    assert found["planned"]["completions"] == 240
    assert (done.returncode, found["ok"]) == (1, False)
    # base, after steps 12 and 24, and the end: 4 x 20 held-out prompts, each asked once
    more = {"eval_every": 12, "eval_prompts": 20, "warm_start": {"samples": 8, "tries": 5, "rounds": 2}}
    recipe.write_text(json.dumps({"task": "judged.py", "grpo": grpo, **more}))
    planned = wb.rewards.trial(str(recipe), cases=4).planned
    assert (planned["completions"], planned["warming"]) == (240 + 80, 2 * 8 * 5)


def test_progress_and_the_file_of_trials(home):
    told = []
    judged = wb.rewards.make_judge_reward(honest)
    trial = wb.rewards.trial(task_of(judged), cases=6, progress=lambda *done: told.append(done))
    assert told == [(4, 6), (6, 6)]
    [line] = (home / "judges" / "trials.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert {name: kept[name] for name in ("key", "verdict", "ok", "rows")} == {
        "key": trial.key, "verdict": trial.verdict, "ok": trial.ok, "rows": 6,
    }  # fmt: skip
    assert kept["measures"][0].keys() == set(JudgeMeasure._fields)
    assert [*(home / "judges").iterdir()] == [home / "judges" / "trials.jsonl"], "the cache is neither read nor written"


def test_a_stale_trial_does_not_count(home):
    def judged(rubric="Is it right?", **limits):
        return judge_of(wb.rewards.make_judge_reward(honest, rubric, **limits))

    task = task_of(wb.rewards.make_judge_reward(honest, "Is it right?"))
    wb.rewards.trial(task, cases=4)
    assert judged().trial_on(task)["rows"] == 4
    assert judged(max_tokens=10**9).trial_on(task) is not None
    assert judged("Is it polite?").trial_on(task) is None
    assert judge_of(wb.rewards.make_judge_reward(lambda messages: "", "Is it right?")).trial_on(task) is None
    assert judge_of(wb.rewards.make_ranking_reward(honest, "Is it right?")).trial_on(task) is None
    assert judged().trial_on(task_of(*task.reward_funcs, rows=task.rows[1:])) is None
    with (home / "judges" / "trials.jsonl").open("ab") as file:
        file.write(b'{"key": "' + judged().key(task).encode())
    with pytest.warns(UserWarning, match="torn"):
        assert judged().trial_on(task) is not None


def test_what_cannot_be_tried_is_refused(home):
    judged = wb.rewards.make_judge_reward(honest)
    with pytest.raises(TaskError, match="0 functions ask a judge"):
        wb.rewards.trial("arithmetic")
    second = wb.rewards.make_judge_reward(honest, "other", name="second_reward")
    with pytest.raises(TaskError, match="2 functions ask a judge") as met:
        wb.rewards.trial(task_of(judged, second))
    assert "judge_reward, second_reward" in met.value.remedy
    assert wb.rewards.trial(task_of(judged, second), function="second_reward", cases=2).function == "second_reward"
    partial = functools.partial(judged)
    assert wb.rewards.trial(task_of(partial), cases=2).function == "judge_reward"
    with pytest.raises(TaskError, match="what a good answer to them is"):
        wb.rewards.trial(task_of(judged, rows=[{"prompt": "Sing."}, {"prompt": "Dance."}]))


def test_a_judge_that_cannot_be_reached_ends_the_trial(home):
    judged = wb.rewards.make_judge_reward(wb.rewards.Endpoint("http://127.0.0.1:9/v1", "m"), retries=0)
    with pytest.raises(RewardError, match="m at 127.0.0.1:9, on this machine; it raised ConnectionError"):
        wb.rewards.trial(task_of(judged), cases=4)
    with pytest.raises(BudgetError, match="of 1,000 are spent"):
        wb.rewards.trial(task_of(wb.rewards.make_judge_reward(honest, max_tokens=1000)), cases=4)
    assert not (home / "judges" / "trials.jsonl").exists()


def test_references_come_from_the_task_where_rows_have_no_answer(home):
    rows = [{"prompt": f"Name {n} colours."} for n in range(2, 6)]
    seen = []

    def call(text):
        seen.append(text)
        return '{"score": 5}'

    task = task_of(wb.rewards.make_judge_reward(call), rows=rows, ideal=lambda row: f"Ideal for {row['prompt']}")
    wb.rewards.trial(task)
    assert any("Ideal for Name 3 colours." in text for text in seen)


# --- what is read -----------------------------------------------------------------------------------------------------

FILE = """
import workbench as wb


def call(text):
    return '{"score": %d}' % (9 if "**" in text.rpartition(" answer")[2] else 4)


judged = wb.rewards.make_judge_reward(call, "Is it right?")
rows = wb.load_task("arithmetic").rows
task = wb.Task("judged", rows[:200], [wb.rewards.correctness_reward, judged], held_out=rows[200:300])
"""


def test_the_command_says_what_failed_and_what_to_do(home):
    (home / "judged.py").write_text(FILE)
    done = workbench("trial", "judged.py", "--cases", "20", home=home)
    assert done.returncode == 1
    assert "judge_reward on judged, 20 prompts: failed" in done.stdout
    assert "error: markdown 0.50 (0.35 to 0.65; within ±0.15)" in done.stdout
    assert "→ say in the rubric what form is worth" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 160
    found = json.loads(workbench("trial", "judged.py", "--cases", "20", "--json", home=home).stdout)
    assert found["verdict"].startswith("failed: markdown 0.50")
    assert {each["name"]: each["verdict"] for each in found["measures"]}["verbosity"] == PASSED
    assert workbench("trial", "arithmetic", home=home).returncode == 2
    assert workbench("trial", "judged.py", "--cases", "1", home=home).returncode == 2


def test_a_cell_shows_it_as_a_table(home):
    trial = judges.on_trial(judges.answers(judges.markdown), False, 40)
    page = view_of(trial)._repr_html_()
    assert page.count("FAILED") == 1
    assert all("<td" in page and each.name in page for each in trial.measures)
    assert str(trial).startswith("judge_reward on arithmetic: failed: markdown")


def test_a_policy_of_this_machine_is_a_judge(home, tiny_policy):
    call = wb.rewards.local_judge(tiny_policy, max_tokens=8)
    reply = call([{"role": "user", "content": "What is 1 + 1?"}])
    assert reply.model == "tiny"
    assert (reply.input_tokens > 0, reply.output_tokens) == (True, pytest.approx(4, abs=4))
    assert call.asks == "the policy tiny, on this machine"
    grades = [f'{{"score": {grade}}}' for grade in range(11)]
    chosen = wb.rewards.local_judge(tiny_policy, answers=grades)([{"role": "user", "content": "What is 1 + 1?"}])
    assert chosen.text in grades
    assert chosen.input_tokens == 11 * reply.input_tokens
    assert call.identity != wb.rewards.local_judge("tiny", max_tokens=9).identity
    trial = wb.rewards.trial(task_of(wb.rewards.make_judge_reward(call)), cases=2)
    assert measured(trial)["unreadable"].value == 1.0
    assert math.isfinite(trial.planned["minutes"])
