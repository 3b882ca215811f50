"""Tasks of every kind, examined: a sound one is no error, and a reward that never looks at the answer is one."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import yaml

from workbench.audit import completions, examination
from workbench.audit.examination import audit_rewards
from workbench.audit.probes import probes
from workbench.base.instruments import TABLE
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards import library
from workbench.task import Task


def found_in(task: Task, **options) -> dict[str, list[str]]:
    """Kind of finding -> what is said."""
    said: dict[str, list[str]] = {}
    for finding in audit_rewards(task, **options).findings:
        said.setdefault(finding.kind, []).append(str(finding))
    return said


AUDIT = Path(examination.__file__).parent


def test_every_rule_of_the_tables_is_complete_and_used():
    files = [*AUDIT.glob("*.py"), *AUDIT.parent.glob("instruments/games/starts.py")]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    rules = yaml.safe_load((AUDIT / "findings.yaml").read_text(encoding="utf-8"))
    if "games" not in TABLE:  # which measures it
        del rules["starts.luck"]
    assert [rule for rule in rules if f'"{rule}"' not in code] == []
    for rule in rules.values():
        assert [*rule] == ["severity", "text", "remedy"]
        assert rule["severity"] in ("error", "warning", "note")
        assert rule["text"]
    named = re.findall(r'finding\(\s*"([\w.]+)"|rule = "([\w.]+)"|refusal\("([\w.]+)"', code)
    assert {rule for found in named for rule in found if rule} <= set(rules)


def test_every_probe_of_the_table_can_be_made():
    task = table(SYSTEM_PROMPT, ["42", "43"], library.correctness_reward)
    shown = table('Reply as {"total": "..."}', ["yes", "no"], library.correctness_reward)
    free = table("", ["yes", "no"], library.correctness_reward)  # no format is asked for
    writers = [completions.builders(each, each.rows)[0] for each in (task, shown, free)]
    made = {probe.name for builder in writers for probe in probes(builder)}
    assert made == set(yaml.safe_load((AUDIT / "probes.yaml").read_text(encoding="utf-8")))


TAGGED = "Answer in this format:\n<answer>\n[answer]\n</answer>"


def table(system, answers, *functions, **options):
    prompts = [f"question {number}?" for number in range(len(answers))]
    prompts = [to_messages(prompt, system) for prompt in prompts] if system is not None else prompts
    column = options.pop("column", "answer")
    rows = [{"prompt": prompt, column: answer} for prompt, answer in zip(prompts, answers, strict=True)]
    return Task("t", rows, functions, **options)


def content(completion):
    return completion[0]["content"] if isinstance(completion, list) else completion


def said_anything_reward(completions, **kwargs):
    return [1.0 if re.search(r"<answer>\s*(yes|no)\s*</answer>", content(each)) else 0.0 for each in completions]


def any_letter_reward(completions, **kwargs):
    return [1.0 if re.search(r"[A-D]", content(each)) else 0.0 for each in completions]


def exact_reward(completions, answer, **kwargs):
    return [1.0 if content(each).strip() == right else 0.0 for each, right in zip(completions, answer, strict=True)]


def keyword_reward(completions, **kwargs):
    return [1.0 if "photosynthesis" in content(each) else 0.0 for each in completions]


def other_column_reward(completions, solution, **kwargs):
    return [float(content(each).split()[-1:] == [right]) for each, right in zip(completions, solution, strict=True)]


def half_reward(completions, answer, **kwargs):
    known = [right == "42" for right in answer]
    return [float("42" in content(each)) if one else None for each, one in zip(completions, known, strict=True)]


def random_reward(completions, **kwargs):
    return [random.random() for _ in completions]


def late_penalty(completions, **kwargs):
    return [-1.0 if "as an AI language model" in content(each) else 0.0 for each in completions]


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        table(TAGGED, ["42", "7"], library.correctness_reward),
        table("Put the answer into \\boxed{}.", ["5.25", "0.5"], library.boxed_correctness_reward),
        table("Put the answer into \\boxed{}.", ["10\\%", "20\\%"], library.boxed_correctness_reward),
        table("Reply with the number only.", ["42", "7"], exact_reward),
        table("Be brief.", ["42", "7"], library.last_line_reward),
        table(TAGGED, ["42", "7"], library.correctness_reward, late_penalty),
        table(None, ["42", "7"], other_column_reward, column="solution"),
    ],
    ids=["tags", "decimals", "percent", "alone", "last line", "penalty", "solution"],
)
def test_a_sound_task_of_another_kind_is_no_error(task):
    examination = audit_rewards(task)
    assert examination.ok, examination.findings


@pytest.mark.parametrize(
    "task",
    [
        table(TAGGED, ["yes", "no", "yes"], said_anything_reward),
        table("Choose a letter.", ["A", "B", "C"], any_letter_reward, ideal=lambda row: f"({row['answer']})"),
    ],
    ids=["yes or no", "letters"],
)
def test_a_reward_that_never_looks_at_the_answer_is_found(task):
    [finding] = [each for each in audit_rewards(task).findings if each.kind == "hackable"]
    assert "a wrong answer" in finding.text


def test_where_the_honest_completion_is_a_guess_it_is_said_and_no_error():
    examination = audit_rewards(table(None, [None, None], keyword_reward))
    assert examination.ok
    assert "guessed" in str(examination.findings)
    assert "Task(ideal=" in str(examination.findings)


def test_an_answer_column_of_another_name_is_used_and_said():
    said = found_in(table(None, ["42", "7"], other_column_reward, column="solution"))
    assert "taken from the column 'solution'" in said["answer_column"][0]


def test_prompts_about_which_no_function_says_anything_are_an_error():
    examination = audit_rewards(table(TAGGED, ["42", "7", "42", "7"], half_reward))
    assert not examination.ok
    assert "on 2 of 4 prompts no function applies" in str(examination.findings)
    assert examination.reference_total == 1.0  # of those that are scored


def test_a_score_that_does_not_repeat_is_said():
    assert "does not repeat" in found_in(table(TAGGED, ["42", "7"], random_reward))["random"][0]


def test_a_penalty_that_nothing_trips_is_no_error():
    examination = audit_rewards(table(TAGGED, ["42", "7"], library.correctness_reward, late_penalty))
    [finding] = [each for each in examination.findings if each.kind == "constant"]
    assert (finding.severity, finding.function) == ("warning", "late_penalty")
    assert "never strikes" in finding.text


def test_a_penalty_that_strikes_the_reference_completion_is_called_one():
    @library.max_score(0.0)
    def brief_reward(completions, **columns):
        return [-2.0 if "<answer>" in completion[0]["content"] else 0.0 for completion in completions]

    examination = audit_rewards(table(TAGGED, ["42", "7"], library.correctness_reward, brief_reward))
    [finding] = [each for each in examination.findings if each.kind == "cannot_pay"]
    assert (finding.severity, finding.function) == ("error", "brief_reward")
    assert finding.text == "a penalty that strikes what the prompt asks for: the reference completion is charged -2"


def test_padding_that_no_function_minds_is_a_warning():
    [finding] = [
        each for each in audit_rewards(table(TAGGED, ["42"], library.correctness_reward)).findings if each.kind == "padding"
    ]
    assert finding.severity == "warning"


def test_a_parameter_that_lacks_its_s_is_named():
    def short_reward(prompt, completions, **kwargs):
        return [1.0] * len(completions)

    assert "rename the parameter to prompts" in found_in(table(TAGGED, ["42"], short_reward))["needs_column"][0]


class Hanging:
    __name__ = "hanging_reward"

    def __call__(self, completions, **kwargs):
        while any("I am sorry" in content(each) for each in completions):
            pass
        return [float("42" in content(each)) for each in completions]


@pytest.mark.slow
def test_an_object_that_hangs_is_cut_too():
    said = found_in(table(TAGGED, ["42"], Hanging()), deadline_s=2)
    # How many of the others are late is the machine's doing.
    assert re.search(r"[1-9]\d* of \d+ completions were not scored in time \(2 s for all of them\)", said["late"][0])
