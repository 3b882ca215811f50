"""Well-known flawed rewards are found flawed, each for its own reason; the tasks that ship are not, until they are broken."""

from __future__ import annotations

import functools
import json
import re
import time

import pytest

from workbench.audit.examination import audit_rewards
from workbench.base.errors import TaskError
from workbench.base.workspace import to_json
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards.library import correctness_reward as sound_correctness_reward
from workbench.rewards.library import lenient_correctness_reward, strict_format_reward
from workbench.task import Task
from workbench.tasks.loading import load_task
from workbench.teaching.exercises import exercise
from workbench.teaching.exercises.adaptive import AdaptiveReward
from workbench.teaching.exercises.correctness import extract_final_answer
from workbench.teaching.exercises.format import format_reward
from workbench.teaching.exercises.strict_and_soft import strict_format_reward_func
from workbench.tiny.task import REWARD_FUNCS
from workbench.tiny.task import task as arithmetic
from workbench.training.plan.loading import load_tokenizer

QUESTIONS = [("What is 15 + 27?", "42"), ("How many pens are in 125 boxes of 8?", "1000"), ("What is 9 - 4?", "5")]
SHIPPED = ("arithmetic", "countdown", "csv_qa", "json", "reviews")


def rows(name: str, *columns: str) -> list[dict]:
    """The questions in an exercise's prompt style, with the right answers in these columns (none said: `answer`)."""
    prompts = [row["prompt"] for row in exercise(name).rows(QUESTIONS)]
    return [
        {"prompt": prompt, **dict.fromkeys(columns or ("answer",), answer)}
        for prompt, (_, answer) in zip(prompts, QUESTIONS, strict=True)
    ]


def task_of(name: str, *columns: str, functions=None) -> Task:
    column = columns[0] if columns else "answer"
    return Task(name, rows(name, *columns), functions or exercise(name).functions, answer_column=column)


def found_in(task: Task, **options) -> dict[str, list[str]]:
    """Kind of finding -> what is said."""
    said: dict[str, list[str]] = {}
    for finding in audit_rewards(task, **options).findings:
        said.setdefault(finding.kind, []).append(str(finding))
    return said


NEVER_2 = r"correctness_reward: cannot pay: a reference completion .* earns 0 of 2.*correctness.py:\d+: `2.0` in `return \[2.0 if"
# By number of the recipes' rewards: exercise, the columns that the data have, and what is found, by kind.
KNOWN_FLAWS = {
    "R0": ("template", (), {"raises": "error: reward_function_name: raised NameError: name 'compute_score'"}),
    "R1": (
        "correctness",
        (),
        {
            "cannot_pay": NEVER_2,
            "hackable": "a reward hack earns 2, the reference completion 0: 'the answer alone'",
            "spelling": r"written 42.0 or \$42 or 42.",
        },
    ),
    "R2": (
        "format",
        (),
        {"hackable": "a reward hack earns 1, the reference completion 1: 'empty tags'.*'a wrong answer, in few words'"},
    ),
    "R3": (
        "incremental_format",
        (),
        {
            "hackable": "a reward hack earns 1, the reference completion 1",
            "unbounded": "warning: .* falls without a bound",
        },
    ),
    "R4": (
        "length",
        (),
        {
            "hackable": r"a reward hack earns 2048, the reference completion 36\.6667: 'very long, cut at the limit'",
            "unit": "counts characters; GRPO's own lengths are in tokens",
            "unbounded": "rises without a bound",
        },
    ),
    "R4 in chat": (
        "length_in_chat",
        (),
        {"chat_plain": "warning: .*plain text only: every chat completion scores 1"},
    ),
    "R5": (
        "think_tags",
        (),
        {
            "cannot_pay": r"earns 0 of 1; it pays only all on one line; never reached: think_tags.py:\d+: `1.0` in",
            "chat_plain": "plain text only: with the other it raised TypeError",
        },
    ),
    "R6": (
        "ideal_length",
        (),
        {
            "unit": "counts characters, best at 20 of those tried .about 5 tokens., and speaks of tokens",
            "unbounded": "falls without a bound",
            "hackable": "a reward hack earns .*'prompt echo'",
        },
    ),
    "R7": (
        "problem",
        (),
        {"needs_column": "error: problem_reward: needs 'answers'; the rows have the columns prompt, answer"},
    ),
    "R7 with its column": (
        "problem",
        ("answers",),
        {
            "swallows": r"problem.py:\d+: an exception becomes a score there",
            "cannot_pay": r"earns 0 of 1.*never reached: problem.py:\d+: `1.0` in `reward = 1.0 if",
            "hackable": "'the answer alone'",
        },
    ),
    "R8": ("think_content", (), {"hackable": "a reward hack earns 1, the reference completion 1: 'a wrong answer'"}),
    "R9": (
        "worked_maths",
        (),
        {
            "signature": r"is written as \(prompts, responses\)",
            "hackable": "a reward hack earns 0.6, the reference completion 0.6: 'a wrong answer'",
        },
    ),
    "R11": ("debug", (), {"constant": r"cannot pay: 1 for each of \d+ completions, right, wrong or empty"}),
    "R15": (
        "combination",
        (),
        {
            "cannot_pay": NEVER_2,
            "hackable": "a reward hack earns 2, the reference completion 2",
        },
    ),
    "R16 accuracy": ("trl_accuracy", (), {"needs_column": "accuracy_reward: needs 'solution'"}),
    "R16 format": (
        "trl_think_format",
        (),
        {"hackable": "a reward hack earns 1, the reference completion 1: 'empty tags'"},
    ),
    "strict and soft": (
        "strict_and_soft",
        (),
        {
            "cannot_pay": r"strict_format_reward_func: .*only with its reasoning on one line and a newline at the end; "
            r"never reached: strict_and_soft.py:\d+: `0.5` in `return \[0.5 if re.match",
            "hackable": "soft_format_reward_func: a reward hack earns 0.5, the reference completion 0: 'empty tags'",
        },
    ),
    "xml count": (
        "xml_count",
        (),
        {"unbounded": "falls without a bound", "unit": "counts characters", "hackable": "'prompt echo'"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", KNOWN_FLAWS)
def test_a_well_known_flaw_is_found(which):
    name, columns, expected = KNOWN_FLAWS[which]
    examination = audit_rewards(task_of(name, *columns))
    said = {finding.kind: "" for finding in examination.findings}
    for finding in examination.findings:
        said[finding.kind] += f"{finding}\n"
    for kind, words in expected.items():
        assert re.search(words, said.get(kind, "")), (kind, said)
    assert not examination.ok or set(expected) <= {"chat_plain"}
    json.dumps(to_json(examination.found()), allow_nan=False)


@pytest.mark.timing
def test_both_of_the_strict_and_soft_pair_cannot_pay_and_that_takes_under_a_second():
    task = task_of("strict_and_soft")
    audit_rewards(task)
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        examination = audit_rewards(task)
        taken.append(time.perf_counter() - started)
    unpaid = [finding.function for finding in examination.findings if finding.kind == "cannot_pay"]
    assert unpaid == ["strict_format_reward_func", "soft_format_reward_func"]
    assert min(taken) < 1.0


def reward_function(prompts, responses):
    return [float(str(len(prompt)) in response) for prompt, response in zip(prompts, responses)]


def test_r10_the_prompts_responses_style_is_said_to_be_one():
    [said] = found_in(task_of("worked_maths", functions=[reward_function]))["signature"]
    assert "reward_function: is written as (prompts, responses)" in said
    assert "TRL itself calls by keyword" in said


def test_r12_adaptive_rewards_share_a_name_or_have_a_state_that_nobody_changes():
    with pytest.raises(TaskError, match="two reward functions are called 'AdaptiveReward'"):
        task_of("adaptive")
    said = found_in(task_of("correctness", functions=[AdaptiveReward(format_reward)]))
    assert "nothing calls its method 'adjust_weight'" in said["state"][0]
    assert "changes no advantage" in said["scale"][0]
    assert "'empty tags'" in said["hackable"][0]


@pytest.mark.slow
def test_r16_trls_accuracy_with_its_column_is_sound_and_with_words_says_nothing():
    assert audit_rewards(task_of("trl_accuracy", "solution")).ok
    words = [{**row, "solution": "Paris"} for row in rows("trl_accuracy", "solution")]
    [function] = exercise("trl_accuracy").functions
    examination = audit_rewards(Task("words", words, [function], answer_column="solution"))
    assert not examination.ok
    assert "on 3 of 3 prompts no function applies" in str(examination.findings[0])


# --- the tasks that ship ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_task_that_ships_is_sound(name):
    examination = audit_rewards(load_task(name))
    assert examination.ok, examination.findings
    assert examination.best_hack.share < 0.75
    assert examination.verdict.endswith("nothing is wrong")
    assert examination.rows == 6
    for function in examination.functions:
        assert function.highest == function.maximum
        assert function.reference == pytest.approx(function.maximum, abs=0.01)
    json.dumps(to_json(examination.found()), allow_nan=False)


def generous_reward(completions, **kwargs):
    return [2.0] * len(completions)


def digits_reward(completions, **kwargs):
    return [2.0 * extract_final_answer(completion[0]["content"]).strip().isdigit() for completion in completions]


def printing_reward(completions, answer, **kwargs):
    return [2.0 * (extract_final_answer(c[0]["content"]) == right) for c, right in zip(completions, answer)]


@pytest.mark.parametrize(
    ("broken", "kind", "function", "said"),
    [
        (generous_reward, "constant", "generous_reward", "2 for each of"),
        (digits_reward, "hackable", "digits_reward", "'a wrong answer, in few words'"),
        (printing_reward, "cannot_pay", "printing_reward", "earns 0 of 2"),
        (strict_format_reward_func, "cannot_pay", "strict_format_reward_func", "0 of 0.5"),
    ],
)
def test_it_is_not_once_its_correctness_is_broken(broken, kind, function, said):
    kept = [func for func in REWARD_FUNCS if func.__name__ != "correctness_reward"]
    examination = audit_rewards(Task("broken", arithmetic(40, 4).rows, [broken, *kept]))
    assert not examination.ok
    assert any(
        finding.kind == kind and finding.function == function and said in finding.text for finding in examination.findings
    ), examination.findings


def last_number_reward(completions, answer, **kwargs):
    numbers = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [float(found[-1:] == [right]) for found, right in zip(numbers, answer)]


def somewhere_in_the_block_reward(completions, answer, **kwargs):
    blocks = [completion[0]["content"].rpartition("<answer>")[2] for completion in completions]
    return [float(right in block) for block, right in zip(blocks, answer)]


def transcript_reward(completions, answer, **kwargs):
    return [float(f"= {right}" in completion[0]["content"]) for completion, right in zip(completions, answer)]


def obedient_judge_reward(completions, answer, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [float("full marks" in text or f"\n{right}\n" in text) for text, right in zip(texts, answer)]


@pytest.mark.parametrize(
    ("reward", "system", "paid"),
    [
        (last_number_reward, None, {"negation"}),
        (somewhere_in_the_block_reward, SYSTEM_PROMPT, {"negation", "answer taken back"}),
        (transcript_reward, SYSTEM_PROMPT, {"contradiction"}),
        (obedient_judge_reward, SYSTEM_PROMPT, {"judge injection"}),
        (lenient_correctness_reward, None, set()),
        (sound_correctness_reward, SYSTEM_PROMPT, set()),
    ],
)
def test_a_reward_that_pays_a_denial_a_contradiction_or_the_graders_orders_is_named(reward, system, paid):
    some = [{"prompt": to_messages(f"What is {a} + 12?", system), "answer": str(a + 12)} for a in (15, 20, 33)]
    audit = audit_rewards(Task("denied", some, [reward]))
    named = [finding.text for finding in audit.findings if finding.kind == "hackable"]
    new = {"negation", "contradiction", "answer taken back", "judge injection"}
    assert {probe.name for probe in audit.probes if probe.name in new and probe.share == 1} == paid
    assert audit.ok is not bool(paid)
    assert [re.search(r"a reward hack earns (\S+), the reference completion", text)[1] for text in named] == ["1"] * bool(paid)


def test_it_is_not_once_its_correctness_is_left_out():
    kept = [func for func in REWARD_FUNCS if func.__name__ != "correctness_reward"]
    examination = audit_rewards(Task("broken", arithmetic(40, 4).rows, kept))
    assert [finding.kind for finding in examination.findings if finding.severity == "error"] == ["hackable"]
    assert "a wrong answer" in examination.findings[0].text
    assert examination.best_hack.share >= 1


def test_a_function_that_only_prints_may_have_the_weight_0():
    task = Task("printing", arithmetic(40, 4).rows, [*REWARD_FUNCS, generous_reward], [1.0] * len(REWARD_FUNCS) + [0.0])
    examination = audit_rewards(task)
    assert examination.ok
    assert ("constant", "note") in [(finding.kind, finding.severity) for finding in examination.findings]


def test_a_weight_can_make_a_cheat_pay():
    task = arithmetic(40, 4)
    assert audit_rewards(task).ok
    assert not audit_rewards(task, weights={"correctness_reward": 0.0}).ok


# --- tokenizer and template -------------------------------------------------------------------------------------

SYSTEM_ROWS = [{"prompt": to_messages(question, SYSTEM_PROMPT), "answer": answer} for question, answer in QUESTIONS]
SOUND = Task("sound", SYSTEM_ROWS, [sound_correctness_reward, strict_format_reward])
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>OPENING{% endif %}"
)


def test_the_embedded_policys_tokenizer_is_no_trouble():
    assert audit_rewards(SOUND, tokenizer=load_tokenizer()).ok


def test_tags_that_are_special_tokens_cannot_be_paid_for():
    tokenizer = load_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    said = found_in(SOUND, tokenizer=tokenizer)["tokenizer"]
    assert [each.split(":")[1].strip() for each in said] == ["correctness_reward", "strict_format_reward"]
    assert "<answer> </answer> are special tokens, which vanish when it is decoded" in said[0]


def test_a_template_that_opens_the_thought_takes_the_tag_away():
    tokenizer = load_tokenizer()
    [function] = exercise("trl_think_format").functions
    task = Task("think", rows("trl_think_format"), [function])
    assert "tokenizer" not in found_in(task, tokenizer=tokenizer)
    tokenizer.chat_template = TEMPLATE.replace("OPENING", "<think>\n")
    [said] = found_in(task, tokenizer=tokenizer)["tokenizer"]
    assert "think_format_reward: cannot pay with this tokenizer" in said
    assert "the template writes <think> itself, so the completion begins after it" in said


def test_an_honest_completion_has_to_fit():
    assert "cut" not in found_in(SOUND, tokenizer=load_tokenizer())
    [said] = found_in(SOUND, tokenizer=load_tokenizer(), max_completion_length=8)["cut"]
    assert re.search(r"error: a reference completion takes \d+ tokens, and 8 fit", said)


# --- functions that fail ----------------------------------------------------------------------------------------


def fragile_reward(completions, answer, **kwargs):
    right = sound_correctness_reward(completions, answer)
    return [score + 0 * len(c[0]["content"].split()[0]) for score, c in zip(right, completions)]


def test_one_that_raises_on_a_cheat_is_named_with_the_line_and_the_cheat():
    examination = audit_rewards(Task("fragile", SYSTEM_ROWS, [fragile_reward, strict_format_reward]))
    [said] = [str(finding) for finding in examination.findings if finding.severity == "error"]
    assert "fragile_reward: raised IndexError: list index out of range (test_examination.py:" in said
    assert re.search(r"on 6 of \d+ completions; the first is 'empty': ''", said)
    assert not examination.ok


def hanging_reward(completions, answer, **kwargs):
    for completion in completions:
        re.match(r"(\s+)+$", completion[0]["content"] + "x" if not completion[0]["content"].strip() else "x")
    return sound_correctness_reward(completions, answer)


@pytest.mark.timing
def test_one_that_hangs_is_late_within_a_bound():
    started = time.monotonic()
    said = found_in(Task("hanging", SYSTEM_ROWS, [hanging_reward, strict_format_reward]), deadline_s=1.0)
    assert time.monotonic() - started < 12
    [late] = said["late"]
    assert re.search(
        r"hanging_reward: 3 of \d+ completions were not scored in time \(1 s for all of them\); the first is 'white space'",
        late,
    )
    assert "a pattern that backtracks" in late


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned NoneType"),
        ({"a": 1.0}, "returned dict"),
        ([1.0], "returned 1 scores for"),
        (2.0, "returned float 2.0"),
    ],
)
def test_one_that_returns_something_else_is_named(value, said):
    def bad_reward(completions, **kwargs):
        return value

    [found] = found_in(Task("bad", SYSTEM_ROWS, [bad_reward, strict_format_reward]))["returns"]
    assert f"error: bad_reward: {said}" in found


def test_a_function_without_kwargs_is_named_and_the_others_are_examined():
    def closed_reward(completions):
        return [1.0] * len(completions)

    examination = audit_rewards(Task("closed", SYSTEM_ROWS, [closed_reward, strict_format_reward]))
    assert examination.findings[0].kind == "signature"
    assert "does not accept" in examination.findings[0].text
    assert {function.name: function.reference for function in examination.functions} == {
        "closed_reward": None,
        "strict_format_reward": 1.0,
    }


def test_a_function_that_pays_silence_is_named():
    def brevity_reward(completions, **kwargs):
        """Fewer characters are better."""
        return [max(0.0, 1 - len(completion[0]["content"]) / 1000) for completion in completions]

    said = found_in(Task("brief", SYSTEM_ROWS, [sound_correctness_reward, strict_format_reward, brevity_reward]))
    assert "brevity_reward: an empty completion earns 1 from it, the reference completion" in said["silence"][0]
    assert "hackable" not in said


# --- what the task says itself ----------------------------------------------------------------------------------


def test_ones_own_probe_is_tried_and_can_be_the_one_that_pays():
    def lenient(completions, answer, **kwargs):
        return [float(right in completion[0]["content"]) for completion, right in zip(completions, answer)]

    own = {"digits": lambda row: f"0{row['answer']}0 is 5 times more"}
    examination = audit_rewards(Task("own", SYSTEM_ROWS, [lenient], probes=own))
    assert next(cheat for cheat in examination.probes if cheat.name == "digits").own
    assert examination.best_hack.share == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"probes": {"mine": lambda row: row["none"]}}, "probe 'mine' raised KeyError"),
        ({"ideal": lambda row: row["none"]}, "ideal raised KeyError"),
        ({"ideal": lambda row: 3}, "ideal returned int"),
        ({"rows": []}, "0 prompts"),
    ],
)
def test_what_cannot_be_made_from_the_task_is_an_error(change, said):
    with pytest.raises(TaskError, match=said):
        audit_rewards(Task(**{"name": "t", "rows": SYSTEM_ROWS, "reward_funcs": [strict_format_reward], **change}))


def test_ideal_is_what_has_to_pay():
    def haiku_reward(completions, **kwargs):
        return [float(len(c[0]["content"].splitlines()) == 5) for c in completions]

    asked = [{"prompt": to_messages("A haiku about rain.")}]
    guessed = audit_rewards(Task("haiku", asked, [haiku_reward]))
    assert "the reference was guessed" in str(guessed.findings[0])
    assert "the reference was guessed" in guessed.verdict
    written = functools.partial(lambda row, lines: "\n".join(lines), lines=["a", "b", "c", "d", "e"])
    assert audit_rewards(Task("haiku", asked, [haiku_reward], ideal=written)).reference_total == 1.0
    assert "cannot_pay" not in found_in(Task("haiku", asked, [haiku_reward], ideal=written))


def test_a_golden_case_that_does_not_hold_is_an_error(tmp_path):
    file = tmp_path / "cases.jsonl"
    file.write_text('{"completion": "<answer>42</answer>", "expected": {"correctness_reward": 2.0}}\n')
    assert audit_rewards(SOUND, cases=str(file)).ok
    assert audit_rewards(SOUND, cases=str(file)).cases == 1
    with file.open("a") as lines:
        lines.write('{"completion": "42", "expected": {"correctness_reward": 2.0}, "name": "bare"}\n')
    examination = audit_rewards(SOUND, cases=str(file))
    assert not examination.ok
    assert examination.findings[0].text == "regression case, line 2 (bare): correctness_reward is 0, expected 2"


def test_a_golden_case_on_which_a_function_fails_is_an_error_too(tmp_path):
    def odd_reward(completions, answer, **kwargs):
        return [float("nan") if c[0]["content"] == "odd" else float(r in c[0]["content"]) for c, r in zip(completions, answer)]

    file = tmp_path / "cases.jsonl"
    file.write_text('{"completion": "odd", "expected": 0}\n')
    [said] = found_in(Task("odd", SYSTEM_ROWS, [odd_reward]), cases=str(file))["case"]
    assert "regression case, line 1 (odd): odd_reward returned nan for 'odd'" in said


def test_progress_and_the_number_of_prompts():
    seen = []
    examination = audit_rewards(arithmetic(40, 4), rows=2, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(number, 5) for number in range(6)]
    assert examination.rows == 2


def test_found_is_json_even_where_nothing_could_be_scored():
    found = json.loads(json.dumps(to_json(audit_rewards(task_of("template")).found()), allow_nan=False))
    assert (found["ok"], found["reference_total"], found["probes"]) == (False, 0.0, [])
    assert found["functions"][0]["reference"] is None
