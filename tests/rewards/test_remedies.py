"""Every remedy of the catalogue, followed literally once: the finding is there, and then it is gone."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import workbench as wb
from workbench.audit import findings
from workbench.audit.examination import RewardAudit, audit_rewards
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards import completion_text, library, make_answer_reward, verifiers
from workbench.rewards.compare import same_answer
from workbench.rewards.library import max_score
from workbench.task import Task
from workbench.training.plan.loading import load_tokenizer

RULES = yaml.safe_load(Path(findings.__file__).with_name("findings.yaml").read_text(encoding="utf-8"))
TAGS = "Reason in <think> </think>, then give it in <answer> </answer>:\n<think>\n...\n</think>\n<answer>\n...\n</answer>"
NAMED = "Work it out inside <think> </think> tags, and give the answer inside <answer> </answer> tags."
SHOWN = "Respond as:\n<think>\n...\n</think>\n<answer>\n...\n</answer>"
NUMBERS = ["42", "7", "1000", "-3"]
WORDS = ["yes", "no"] * 3
OPTIONS = ("rows", "weights", "tokenizer", "max_completion_length", "cases", "deadline_s")

Case = dict[str, Any]


def probe(functions, system: str | None = TAGS, answers=NUMBERS, column: str = "answer", **options) -> RewardAudit:
    """An audit of a task of questions; `columns`: of each row, further ones."""
    more = options.pop("columns", [{}] * len(answers))
    rows = [
        {"prompt": to_messages(f"Question {'of some length' * (number % 2)} {number}?", system), column: answer, **own}
        for number, (answer, own) in enumerate(zip(answers, more))
    ]
    asked = {name: options.pop(name) for name in OPTIONS if name in options}
    asked.setdefault("deadline_s", 60.0)
    functions = functions if isinstance(functions, list) else [functions]
    return audit_rewards(Task("t", rows, functions, **options), **asked)


def rules_of(audit: RewardAudit) -> set[str]:
    """The rules of the warnings and errors, and of the notes that have a remedy."""
    shapes = {
        rule: [re.sub(r"\\\{.*?\\\}", ".*", re.escape(each[part])) for part in ("text", "remedy")] for rule, each in RULES.items()
    }
    return {
        rule
        for found in audit.findings
        for rule, (said, remedy) in shapes.items()
        if found.remedy
        and rule.partition(".")[0] in (found.kind, "cause")
        and found.severity in (RULES[rule]["severity"], "warning")
        if re.search(said, found.text, re.DOTALL)
        and re.fullmatch(remedy, found.remedy.replace("{", "{{").replace("}", "}}"), re.DOTALL)
    }


text = completion_text


def block(completion) -> str:
    found = re.findall(r"<answer>\s*(.*?)\s*</answer>", text(completion), re.DOTALL)
    return found[0] if len(found) == 1 else ""


def sound(completions, answer, **kwargs):
    return [float(same_answer(block(each), str(right))) for each, right in zip(completions, answer)]


def strict(completions, **kwargs):
    pattern = r"<think>[^<]+</think>\s*<answer>[^<]+</answer>"
    return [0.25 * bool(re.fullmatch(pattern, text(each).strip())) for each in completions]


def exact(completions, answer, **kwargs):
    return [float(block(each) == right) for each, right in zip(completions, answer)]


def by(score: Callable[[str], object], name: str = "own_reward", most: float | None = None):
    """A function that scores texts one by one."""

    def own(completions, **kwargs):
        return [score(text(each)) for each in completions]

    own.__name__ = name
    return own if most is None else max_score(most)(own)


def with_rows(score: Callable[..., object], name: str = "own_reward"):
    """A function that scores a text beside the answer of its row."""

    def own(completions, answer, **kwargs):
        return [score(text(each), right) for each, right in zip(completions, answer)]

    own.__name__ = name
    return own


def no_dot(completions, answer, **kwargs):
    found = [re.search("<answer>(.*)</answer>", text(each)) for each in completions]
    return [float(each is not None and each[1].strip() == right) for each, right in zip(found, answer)]


def one_line(completions, answer, **kwargs):
    found = [re.fullmatch("<think>(.*)</think><answer>(.*)</answer>", text(each).strip()) for each in completions]
    return [float(each is not None and each[2] == right) for each, right in zip(found, answer)]


def with_dot(completions, answer, **kwargs):
    found = [re.search("<answer>(.*)</answer>", text(each), re.DOTALL) for each in completions]
    return [float(each is not None and each[1].strip() == right) for each, right in zip(found, answer)]


def no_kwargs(completions, answer):
    return [float(block(each) == right) for each, right in zip(completions, answer)]


def by_position(prompts, responses):
    return [float("7" in each) for each in responses]


def by_keyword(prompts, completions, **kwargs):
    return [float("7" in text(each)) for each in completions]


def wants_gold(completions, gold, **kwargs):
    return exact(completions, gold)


def may_want_gold(completions, **kwargs):
    return [float(block(each) == right) for each, right in zip(completions, kwargs.get("gold", [None] * len(completions)))]


def one_score(completions, **kwargs):
    return [1.0]


def of_prompts(prompts, completions, **kwargs):
    return [len(each[-1]["content"]) / 100 for each in prompts]


def of_prompts_and_answers(prompts, completions, answer, **kwargs):
    return [a + b for a, b in zip(of_prompts(prompts, completions), exact(completions, answer))]


def batch_mean(completions, answer, **kwargs):
    scores = exact(completions, answer)
    return [sum(scores) / len(scores)] * len(scores)


def rounded(completions, **kwargs):
    return [round(len(text(each)) / 100_000, 1) for each in completions]


def not_rounded(completions, **kwargs):
    return [min(1.0, len(text(each)) / 100_000) for each in completions]


def reads_text_alone(completions, answer, **kwargs):
    return [float(isinstance(each, str) and block(each) == right) for each, right in zip(completions, answer)]


def reads_what_it_gets(completions, answer, **kwargs):
    pattern = r"<reasoning>\n.*\n</reasoning>\n<answer>\n(.*)\n</answer>\n?"
    found = [re.fullmatch(pattern, str(each), re.DOTALL) for each in completions]
    return [float(each is not None and each[1] == right) for each, right in zip(found, answer)]


def half_of_the_rows(completions, answer, **kwargs):
    return [float(block(each) == right) if right == "yes" else None for each, right in zip(completions, answer)]


def all_rows(completions, answer, **kwargs):
    return [float(block(each) == right) for each, right in zip(completions, answer)]


def two_ways(completions, answer, **kwargs):
    scores = []
    for each, right in zip(completions, answer):
        score = 0.5 if block(each) == right else 0.0
        if score and "checked" in text(each):
            score = 1.0
        scores.append(score)
    return scores


def one_way(completions, answer, **kwargs):
    return [1.0 if block(each) == right and "checked" in text(each) else 0.0 for each, right in zip(completions, answer)]


def draws(completions, answer, **kwargs):
    return [each + random.random() / 1000 for each in exact(completions, answer)]


def evaluated(completions, answer, **kwargs):
    return [float(bool(block(each).isdigit()) and str(eval(block(each))) == right) for each, right in zip(completions, answer)]


def parsed(completions, answer, **kwargs):
    return [float(verifiers.evaluate_expression(block(each)) == int(right)) for each, right in zip(completions, answer)]


def swallowing(completions, answer, **kwargs):
    scores = []
    for each, right in zip(completions, answer):
        try:
            scores.append(float(int(block(each)) == int(right)))
        except Exception:
            scores.append(0.0)
    return scores


def catching(completions, answer, **kwargs):
    scores = []
    for each, right in zip(completions, answer):
        try:
            scores.append(float(int(block(each)) == int(right)))
        except ValueError:
            scores.append(0.0)
    return scores


def slow_to_read(completions, **kwargs):
    time.sleep(0.8 * any("I am sorry" in text(each) for each in completions))
    return by(lambda each: float("7" in each))(completions)


def sleepy(completions, answer, **kwargs):
    time.sleep(0.06 * len(completions))
    return exact(completions, answer)


def read_as_json(key: str, change=lambda value: value):
    def own(completions, answer, **kwargs):
        pairs = zip(map(verifiers.json_of, completions), answer)
        return [float(isinstance(said, dict) and change(said.get(key)) == right) for said, right in pairs]

    return own


def any_block(completions, **kwargs):
    return [float(bool(block(each))) for each in completions]


def brief(completions, **kwargs):
    return [max(0.0, 0.5 - len(text(each)) / 2000) for each in completions]


def brief_with_answer(completions, **kwargs):
    return [max(0.0, 0.5 - len(text(each)) / 2000) if block(each) else 0.0 for each in completions]


def short_and_right(completions, answer, **kwargs):
    """Counts characters."""
    return [(1 - len(text(each)) / 200) * (block(each) == right) for each, right in zip(completions, answer)]


def bounded_and_right(completions, answer, **kwargs):
    """Counts characters."""
    return [(1 - min(0.5, len(text(each)) / 200)) * (block(each) == right) for each, right in zip(completions, answer)]


def length(completions, **kwargs):
    return [min(1.0, len(text(each)) / 100) for each in completions]


def length_in_characters(completions, **kwargs):
    """Longer is better, in characters."""
    return [min(1.0, len(text(each)) / 100) for each in completions]


def grows(completions, answer, **kwargs):
    """Counts characters."""
    return [right - len(text(each)) / 1e4 for each, right in zip(completions, exact(completions, answer))]


def grows_to_a_bound(completions, answer, **kwargs):
    """Counts characters."""
    return [right + max(-0.1, -len(text(each)) / 1e4) for each, right in zip(completions, exact(completions, answer))]


def unreadable_is_right(completions, answer, **kwargs):
    return [1.0 if not right.isdigit() else float(block(each) == right) for each, right in zip(completions, answer)]


def lenient(completions, answer, **kwargs):
    return [1.0 if right in text(each) else 0.5 for each, right in zip(completions, answer)]


def haiku(completions, **kwargs):
    return [float(text(each).count("\n") == 8) for each in completions]


def penalty(completions, **kwargs):
    return [-1.0 if "As an AI" in text(each) else 0.0 for each in completions]


@max_score(0.0)
def strikes_tags(completions, **kwargs):
    return [-1.0 if "<answer>" in text(each) else 0.0 for each in completions]


@max_score(0.0)
def spares_tags(completions, **kwargs):
    return [-1.0 if "sorry" in text(each) else 0.0 for each in completions]


def break_between(completions, **kwargs):
    return [
        float(bool(re.fullmatch(r"<think>[^<]*</think>\n<answer>[^<]*</answer>", text(each).strip()))) for each in completions
    ]


FIXED = {"ideal": lambda row: f"<answer>{row['answer']}</answer>"}
LABELS = ["billing", "Shipping", "returns", "shipping"] * 3
LISTED = "Choose one of billing, shipping, returns. Reply within <answer> </answer>."
CHECKED = {"ideal": lambda row: f"checked <answer>{row['answer']}</answer>"}
JSON_OPEN, JSON_INT = 'Reply as {"total": ...}', 'Reply as {"total": <int>}'
POEM = {"system": "Write a haiku.", "answers": [None] * 3}
LINES = {"ideal": lambda row: "\n".join("rainbows!")}
WORK = "<think>\nso\n</think>\n<answer>\n{}\n</answer>"

# Rule -> a probe in which it speaks up, and what of it changes as the remedy says.
CASES: dict[str, tuple[Case, Case]] = {
    "answer_column": ({"functions": wants_gold, "answers": WORDS, "column": "ground_truth"}, {"answer_column": "ground_truth"}),
    "answer_column.constant": ({"functions": haiku, "system": "A haiku.", "answers": ["0"] * 5}, LINES),
    "labels": ({"functions": exact, "system": LISTED, "answers": LABELS}, {"answers": [each.lower() for each in LABELS]}),
    "constant.none": ({"functions": half_of_the_rows, "answers": WORDS}, {"functions": all_rows}),
    "cut": ({"functions": sound, "tokenizer": load_tokenizer, "max_completion_length": 8}, {"max_completion_length": 200}),
    "other_rewards": (
        {"functions": [library.correctness_reward, library.strict_format_reward], "system": JSON_INT},
        {"functions": [read_as_json("total", str)]},
    ),
    "signature": ({"functions": no_kwargs}, {"functions": exact}),
    "signature.style": ({"functions": by_position}, {"functions": by_keyword}),
    "needs_column": ({"functions": wants_gold}, {"columns": [{"gold": each} for each in NUMBERS]}),
    "chat_plain.wrong": ({"functions": reads_text_alone}, {"functions": exact}),
    "returns": ({"functions": one_score}, {"functions": by(lambda each: 1.0 + ("7" in each))}),
    "returns.value": ({"functions": by(lambda each: float("nan"))}, {"functions": by(lambda each: None)}),
    "raises": ({"functions": by(lambda each: float(each.split()[0] == "<think>"))}, {"functions": by(lambda each: -1.0)}),
    "late": ({"functions": slow_to_read, "deadline_s": 0.4, "answers": ["7"]}, {"deadline_s": 30.0}),
    "slow": ({"functions": sleepy, "answers": ["7"], "rows": 1}, {"functions": exact}),
    "constant": ({"functions": [exact, by(lambda each: 2.0)]}, {"weights": {"own_reward": 0.0}}),
    "constant.prompt": ({"functions": of_prompts}, {"functions": of_prompts_and_answers}),
    "constant.penalty": ({"functions": [exact, penalty]}, {"probes": {"mine": "As an AI, no."}}),
    "constant.guessed": ({"functions": haiku, **POEM}, LINES),
    "cannot_pay": ({"functions": no_dot, "system": SHOWN}, {"functions": with_dot}),
    "cannot_pay.layout": ({"functions": one_line, "system": NAMED}, {"functions": with_dot}),
    "cannot_pay.penalty": ({"functions": [exact, strikes_tags]}, {"functions": [exact, spares_tags]}),
    "cannot_pay.guessed": (
        {"functions": by(lambda each: float("\n" not in each and len(each) < 3)), **POEM},
        {"ideal": lambda row: "ok"},
    ),
    "cause.number": ({"functions": exact, "answers": [42, 7]}, {"answers": ["42", "7"]}),
    "cause.text": (
        {"functions": read_as_json("total"), "system": JSON_INT},
        {"answers": [int(each) for each in NUMBERS]},
    ),
    "cause.form": ({"functions": reads_what_it_gets, "system": SYSTEM_PROMPT, "answers": ["7", "19"]}, {"functions": exact}),
    "cause.batch": ({"functions": batch_mean}, {"functions": exact}),
    "cause.column": ({"functions": may_want_gold}, {"columns": [{"gold": each} for each in NUMBERS]}),
    "cause.rounding": ({"functions": [exact, rounded]}, {"functions": [exact, not_rounded]}),
    "cause.prompt": ({"functions": of_prompts}, {"functions": of_prompts_and_answers}),
    "sometimes": ({"functions": exact, "answers": ["42", " 7", "5"]}, {"answers": ["42", "7", "5"]}),
    "unreached.more": ({"functions": two_ways, **FIXED}, CHECKED),
    "layout": ({"functions": break_between, "system": NAMED}, {"system": "<think>why</think>\n<answer>what</answer>"}),
    "layout.type": (
        {"functions": read_as_json("total"), "system": JSON_OPEN},
        {"functions": read_as_json("total", str)},
    ),
    "spelling": ({"functions": exact}, {"functions": sound}),
    "spelling.sentence": (
        {"functions": with_rows(lambda each, right: float(each.split()[-1:] == [right])), "system": None},
        {"functions": make_answer_reward("any")},
    ),
    "hackable": ({"functions": any_block}, {"functions": exact}),
    "padding": ({"functions": exact}, {"functions": [exact, strict]}),
    "silence": ({"functions": [sound, strict, brief]}, {"functions": [sound, strict, brief_with_answer]}),
    "silence.row": ({"functions": unreadable_is_right, "answers": ["42", "x", "7"]}, {"functions": exact}),
    "long": ({"functions": short_and_right}, {"functions": bounded_and_right}),
    "right_by": ({"functions": [lenient, exact]}, {"right_by": "exact"}),
    "scale": ({"functions": exact, "weights": {"exact": 3.0}}, {"weights": {"exact": 1.0}}),
    "random": ({"functions": draws}, {"functions": exact}),
    "unit": ({"functions": length}, {"functions": length_in_characters}),
    "unbounded": ({"functions": grows}, {"functions": grows_to_a_bound}),
    "evaluates": ({"functions": evaluated}, {"functions": parsed}),
    "swallows": ({"functions": swallowing}, {"functions": catching}),
}
# What is no option of a task has a test below; the note of a judge, of an environment and of turns names a tool.
APART = {
    "case", "case.fails", "writes", "tokenizer", "tools", "starts.unequal", "starts.untold", "starts.raises", "starts.reward",
    "judge", "environment", "turns",
}  # fmt: skip


def test_every_remedy_is_followed_somewhere():
    assert {rule for rule, each in RULES.items() if each["remedy"]} == CASES.keys() | APART


@pytest.mark.parametrize("rule", CASES)
def test_followed_literally_the_remedy_ends_the_finding(rule):
    faulty, change = CASES[rule]
    if "tokenizer" in faulty:
        faulty = faulty | {"tokenizer": faulty["tokenizer"]()}
    assert rule in rules_of(probe(**faulty))
    assert rule not in rules_of(probe(**{**faulty, **change}))


@pytest.mark.parametrize("wrong", ['{"completion": "x", "expected": 1}', '{"completion": "x", "expected": {"exact": 0.5}}'])
def test_a_case_that_does_not_hold_is_corrected(tmp_path, wrong):
    file = tmp_path / "cases.jsonl"
    file.write_text(wrong)
    assert "case" in rules_of(probe(exact, cases=str(file)))
    file.write_text('{"completion": "x", "expected": 0}')
    assert "case" not in rules_of(probe(exact, cases=str(file)))


def test_a_function_that_fails_on_cases_alone_returns_a_score_for_each(tmp_path):
    file = tmp_path / "cases.jsonl"
    file.write_text('{"completion": "odd", "expected": 0}')

    def fails_on_odd(completions, answer, **kwargs):
        return [0.0] * 9 if text(completions[0]) == "odd" else exact(completions, answer)

    assert "case.fails" in rules_of(probe(fails_on_odd, cases=str(file)))
    assert "case.fails" not in rules_of(probe(exact, cases=str(file)))


def test_a_file_that_appeared_is_written_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def writes(folder: str):
        def own(completions, answer, **kwargs):
            Path(folder, "samples.txt").write_text(text(completions[0]))
            return exact(completions, answer)

        return own

    assert "writes" in rules_of(probe(writes(".")))
    Path("samples.txt").unlink()
    assert "writes" not in rules_of(probe(writes("elsewhere")))


def test_tags_that_the_tokenizer_drops_are_replaced_by_plain_text():
    tokenizer = load_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    assert "tokenizer" in rules_of(probe(exact, tokenizer=tokenizer))
    plain = with_rows(lambda each, right: float(each.endswith(f"<result>{right}</result>")))
    system = "Reason, then answer: <think>why</think><result>what</result>"
    assert "tokenizer" not in rules_of(probe(plain, system=system, tokenizer=tokenizer))


class Fair:
    """A game that begins in the same way for all of a group."""

    def reset(self, seed=0, **row):
        self.secret = random.Random(seed).random()
        return "Guess."

    def get_reward(self):
        return 0.0

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: which.
        """
        return "no"


class Unfair(Fair):
    def reset(self, **row):
        self.secret = random.random()


class Fails(Fair):
    def reset(self, **row):
        raise ValueError("no board")


class NoNumber(Fair):
    def get_reward(self):
        return float("nan")


class Unreadable(Fair):
    def reset(self, **row):
        self.held = (each for each in "ab")


class Undocumented(Fair):
    def guess(self, number):
        return "no"


@pytest.mark.parametrize(
    ("rule", "environment"),
    [
        ("starts.unequal", Unfair),
        ("starts.raises", Fails),
        ("starts.reward", NoNumber),
        ("starts.untold", Unreadable),
        ("tools", Undocumented),
    ],
)
def test_an_environment_that_is_mended_begins_fairly(rule, environment):
    assert rule in rules_of(probe([], environment=environment))
    assert rule not in rules_of(probe([], environment=Fair))
    if rule == "starts.raises":
        with pytest.raises(ValueError, match="no board"):  # as its remedy says: try it by hand
            environment().reset(prompt="?")


def test_the_tools_that_notes_name_are_there(home):
    assert wb.inspection.ByHand(Task("t", [{"prompt": to_messages("?")}], [], environment=Fair))
    named = {rule: RULES[rule]["remedy"] for rule in ("environment", "turns", "judge")}
    assert ["ByHand" in each for each in named.values()] == [True, True, False]
    assert "workbench trial" in named["judge"]


def test_json_of_the_shipped_rewards_is_what_the_advice_names():
    audit = probe([library.correctness_reward], system=JSON_INT)
    [error] = [each for each in audit.findings if each.severity == "error"]
    assert (error.kind, "make_json_reward(SCHEMA)" in error.remedy) == ("other_rewards", True)
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    paid = wb.rewards.make_json_reward(schema)(completions=[json.dumps({"total": 3}), "3"])
    assert paid == [1.0, 0.0]
