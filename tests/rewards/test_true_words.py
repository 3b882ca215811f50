"""What probe says is true: the headline counts, rows are looked at one by one, and the cause is the one that was shown."""

from __future__ import annotations

import json
import re

import pytest

from workbench.audit.completions import CompletionBuilder
from workbench.audit.examination import RewardAudit, audit_rewards
from workbench.audit.prompt_format import parse_format
from workbench.base.errors import PolicyError
from workbench.data.prompts import to_messages
from workbench.rewards import library
from workbench.rewards.answers import completion_text as text
from workbench.rewards.tracing import keywords_of, overlooks
from workbench.rewards.verifiers import json_of, make_json_reward
from workbench.task import Task
from workbench.training.plan.loading import load_tokenizer

TAGS = "Think in <think> </think>, then give it in <answer> </answer>."
NUMBERS = ["42", "7", "1000", "19"]
LABELS = ["billing", "shipping", "returns", "other"]


def audit(functions, answers=NUMBERS, system: str | None = TAGS, levels=None, **options) -> RewardAudit:
    rows = [{"prompt": to_messages(f"Question {n}?", system), "answer": answer} for n, answer in enumerate(answers)]
    rows = [row | {"level": level} for row, level in zip(rows, levels)] if levels else rows
    return audit_rewards(Task("t", rows, functions if isinstance(functions, list) else [functions], **options))


def said(found: RewardAudit, kind: str) -> str:
    return "\n".join(str(each) for each in found.findings if each.kind == kind)


def block(completion) -> str | None:
    found = re.findall(r"<answer>\s*(.*?)\s*</answer>", text(completion), re.DOTALL)
    return found[0] if len(found) == 1 else None


def exact(completions, answer, **kwargs):
    return [float(block(each) == right) for each, right in zip(completions, answer)]


def test_the_headline_counts_and_nothing_is_wrong_only_where_nothing_is():
    assert audit(exact).verdict.endswith("; 0 errors, 2 warnings")
    assert audit(lambda_of_levels, levels=[1, 2, 3, 4]).verdict.endswith("; 1 error")
    strict = [library.correctness_reward, library.strict_format_reward]
    assert audit(strict, system="<reasoning>\nwhy\n</reasoning>\n<answer>\nwhat\n</answer>").verdict.endswith(
        "; nothing is wrong"
    )


# --- constant within every prompt --------------------------------------------------------------------------------


def lambda_of_levels(completions, level, **kwargs):
    return [each / 4 for each in level]


def of_prompts(prompts, completions, **kwargs):
    return [len(str(each)) % 7 / 7 for each in prompts]


def mean_of_the_prompt(prompts, completions, answer, **kwargs):
    scores, groups = exact(completions, answer), {}
    for prompt, score in zip(map(str, prompts), scores):
        groups.setdefault(prompt, []).append(score)
    return [sum(groups[prompt]) / len(groups[prompt]) for prompt in map(str, prompts)]


def rounded(completions, level, **kwargs):
    return [round(own + len(text(each)) / 100_000, 1) for each, own in zip(completions, level)]


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (lambda_of_levels, "follows the column 'level'"),
        (mean_of_the_prompt, "in a batch all earn the same"),
        (rounded, r"it rounds \(test_true_words.py:\d+\)"),
    ],
)
def test_one_score_for_all_completions_of_a_prompt_is_an_error_with_its_cause(function, cause):
    found = audit([exact, function], levels=[1, 2, 3, 4])
    [error] = [each for each in found.findings if each.severity == "error"]
    assert (error.kind, error.function) == ("constant", function.__name__)
    assert "tells no completions of a prompt apart" in error.text
    assert re.search(cause, error.text)
    assert "sometimes" not in {each.kind for each in found.findings if each.function == function.__name__}


def test_alone_it_is_the_one_error_and_with_the_weight_0_a_note():
    alone = audit(lambda_of_levels, levels=[1, 2, 3, 4])
    assert [each.kind for each in alone.findings if each.severity != "note"] == ["constant"]
    muted = audit([exact, lambda_of_levels], levels=[1, 2, 3, 4], reward_weights=[1.0, 0.0])
    assert muted.ok
    assert [each.severity for each in muted.findings if each.kind == "constant"] == ["note"]


def saturates(completions, **kwargs):
    return [min(1.0, len(text(each)) / 20) for each in completions]


def struck(completions, level, **kwargs):
    scores = []
    for each, own in zip(completions, level):
        score = own / 4
        if "as an AI language model" in text(each):
            score -= 1.0
        scores.append(score)
    return scores


def test_a_reward_that_saturates_is_none_and_a_penalty_that_nothing_trips_is_a_warning():
    assert not said(audit([exact, saturates]), "constant")
    assert said(audit([exact, struck], levels=[1, 2, 3, 4]), "constant").startswith("warning: struck: never strikes")


# --- rows, one by one --------------------------------------------------------------------------------------------


def number_of(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def unreadable_equals_unreadable(completions, answer, **kwargs):
    return [float(number_of(block(each)) == number_of(right)) for each, right in zip(completions, answer)]


def test_a_row_that_pays_an_empty_completion_is_named_though_the_mean_is_low():
    found = audit(unreadable_equals_unreadable, ["42", "7", "1,000", "19"])
    assert found.best_hack.share == 0.25
    assert "on 1 of 4 prompts: row 2 (answer '1,000')" in said(found, "silence")


def last_of_a_list(completions, answer, **kwargs):
    return [float(block(each) == right.split(", ")[-1]) for each, right in zip(completions, answer)]


def test_rows_that_cannot_be_paid_are_named_with_their_answers_by_their_numbers_in_the_task():
    answers = ["1, 7", *["5"] * 9, "2, 3", *["8"] * 9, "4"]  # six of 21 are tried: 0, 4, 8, 12, 16, 20
    found = audit(last_of_a_list, [*answers[:12], "6, 9", *answers[13:]])
    assert "in full on 4 of 6 prompts; 0 on row 0 (answer '1, 7'), row 12 (answer '6, 9')" in said(found, "sometimes")


def pays_long_lists(completions, answer, **kwargs):
    scores = []
    for each, right in zip(completions, answer):
        if block(each) != right:
            scores.append(0.0)
        elif "," in right:
            scores.append(1.0)
        else:
            scores.append(0.5)
    return scores


def test_never_reached_counts_every_prompt():
    assert not said(audit(pays_long_lists, ["5", "7", "2, 3"]), "unreached")
    assert "`scores.append(1.0)`" in said(audit(pays_long_lists, ["5", "7", "9"]), "unreached")


# --- how long, how much, how empty -------------------------------------------------------------------------------


def short_and_right(completions, answer, **kwargs):
    return [(1 - len(text(each)) / 100) * (block(each) == right) for each, right in zip(completions, answer)]


def bounded(completions, answer, **kwargs):
    return [2.0 * (block(each) == right) - min(0.5, len(text(each)) / 1000) for each, right in zip(completions, answer)]


def test_a_right_answer_with_longer_reasoning_that_earns_less_than_none_is_named():
    assert re.search(r"longer reasoning earns -\d.*less than an empty or a wrong one \(0\)", said(audit(short_and_right), "long"))
    assert not said(audit(bounded), "long")


def bonus(completions, answer, **kwargs):
    scores = []
    for each, right in zip(completions, answer):
        score = 0.5 * (block(each) == right)
        if score and "checked" in text(each):
            score = 1.0
        scores.append(score)
    return scores


def test_what_the_ideal_does_not_reach_is_a_warning_and_what_a_guess_does_not_a_note():
    ideal = {"ideal": lambda row: f"<answer>{row['answer']}</answer>"}
    [warning] = [each for each in audit(bonus, **ideal).findings if each.kind == "unreached"]
    assert (warning.severity, "earns 0.5 at most" in warning.text) == ("warning", True)
    reached = {"ideal": lambda row: f"checked <answer>{row['answer']}</answer>"}
    assert not said(audit(bonus, **reached), "unreached")


def part_of_the_right(completions, answer, **kwargs):
    cities = [(json_of(each) or {}).get("city") for each in completions]
    return [float(isinstance(city, str) and city in right) for city, right in zip(cities, answer)]


def test_an_empty_text_in_the_json_is_a_probe():
    found = audit(part_of_the_right, ["Paris", "Rome", "Oslo"], 'Reply as {"city": "..."}')
    assert "'empty values'" in said(found, "hackable")
    assert json.loads(found.best_hack.example) == {"city": ""}


# --- what the answers are ----------------------------------------------------------------------------------------


def last_line(completions, answer, **kwargs):
    return [float(text(each).strip().splitlines()[-1:] == [right]) for each, right in zip(completions, answer)]


def any_case(completions, answer, **kwargs):
    lines = [text(each).strip().casefold().splitlines()[-1:] for each in completions]
    return [float(line == [right.strip().casefold()]) for line, right in zip(lines, answer)]


LISTS = "Sort it into one of: billing, shipping, returns, other. Reply with the label alone."
MESSY = [label.title() if n % 3 == 2 else label for n, label in enumerate(LABELS * 6)]


@pytest.mark.parametrize(
    ("function", "answers", "found"),
    [
        (last_line, MESSY, "the prompt's list lacks 8 of 24 answers: 'Returns' (row 2)"),
        (any_case, MESSY, ""),
        (last_line, LABELS * 6, ""),
        (last_line, [*LABELS * 5, "refund"], "lacks 1 of 21 answers: 'refund' (row 20)"),
        (last_line, [f"word{n}" for n in range(20)], ""),
    ],
    ids=["cases", "read in any case", "clean", "not listed", "no labels"],
)
def test_answers_outside_the_prompts_list_are_named_where_that_costs(function, answers, found):
    line = said(audit(function, answers, LISTS), "labels")
    assert found in line
    assert bool(line) is bool(found)


def test_answers_outside_a_schemas_enum_are_named():
    schema = {"type": "object", "properties": {"label": {"enum": [each.title() for each in LABELS]}}, "required": ["label"]}
    found = audit([part_of_label, make_json_reward(schema)], MESSY, 'Reply as JSON: {"label": "Billing|Shipping|Returns|Other"}')
    assert "the JSON that is asked for lacks 16 of 24 answers: 'billing' (row 0)" in said(found, "labels")


def part_of_label(completions, answer, **kwargs):
    return [float((json_of(each) or {}).get("label") == right) for each, right in zip(completions, answer)]


def test_shipped_functions_that_look_for_another_format_are_one_error():
    functions = [library.correctness_reward, library.strict_format_reward, library.incremental_format_reward]
    [error] = [each for each in audit(functions, system='Reply as {"total": <int>}').findings if each.severity == "error"]
    assert error.kind == "other_rewards"
    assert all(each.__name__ in error.text for each in functions)
    assert "make_json_reward(SCHEMA)" in error.remedy


@pytest.mark.parametrize(
    ("stored", "alone"),
    [
        ("<answer> 6 </answer>", "6"),
        ("so \\boxed{6}", "6"),
        ("5 + 1\n#### 6", "6"),
        ("x = 6", "6"),
        ("(B)", "B"),
        ("B) Paris", "B"),
    ],
)
def test_a_stored_answer_is_written_without_what_it_is_stored_in(stored, alone):
    builder = CompletionBuilder({"prompt": to_messages("?", TAGS), "answer": stored})
    assert builder.reference.endswith(f"<answer>{alone}</answer>")
    assert block(builder.write("so", builder.wrong)) != alone


def test_where_only_the_stored_form_pays_that_is_a_layout_and_no_error():
    found = audit(exact, ["B) Paris", "A) Rome", "C) Oslo", "D) Bern"])
    assert found.ok
    assert "with the answer as it is stored" in said(found, "layout")


@pytest.mark.parametrize(
    ("asked", "last"),
    [
        ("End with a line `Answer: ...`.", "Answer: 42"),
        ("Reason, then end with 'Final answer: <number>'.", "Final answer: 42"),
        ("The last line is of the form ANSWER: $LETTER", "ANSWER: 42"),
        ("Finish with `The answer is: ...`", "The answer is: 42"),
        ("Question: how many?\nAnswer:", "42"),
        ("What is the answer: six or seven?", "42"),
        ("<answer>Answer: ...</answer>", "Answer: 42</answer>"),
    ],
)
def test_a_line_that_begins_with_a_word_for_the_answer_is_a_format(asked, last):
    found = parse_format({"prompt": asked}, "42")
    written = found.write("so", "42").splitlines()[-1]
    assert written == last if "</answer>" not in last else written.startswith("<answer>")
    assert bool(found.mark) == (last[:2] != "42" and "</answer>" not in last)


# --- columns that are not there ----------------------------------------------------------------------------------


def gets_gold(completions, **kwargs):
    return exact(completions, kwargs.get("gold", [None] * len(completions)))


def brackets_gold(completions, **columns):
    return exact(completions, columns["gold"] if "gold" in columns else [0] * len(completions))


def optional_switch(completions, answer, **kwargs):
    return exact(completions, answer) if not kwargs.get("strict") else [0.0] * len(completions)


def test_names_that_are_taken_out_of_the_keywords():
    assert [keywords_of(each) for each in (gets_gold, brackets_gold, optional_switch, exact)] == [
        ["gold"],
        ["gold"],
        ["strict"],
        [],
    ]


@pytest.mark.parametrize("function", [gets_gold, brackets_gold])
def test_a_column_that_the_rows_lack_is_the_cause(function):
    error = audit(function).findings[0]
    assert error.severity == "error"
    assert "it reads the column 'gold', which the rows lack: with the answers in it, it pays 1" in error.text


def test_a_switch_that_the_rows_lack_is_no_cause_of_anything():
    assert audit(optional_switch).ok


# --- what its code says ------------------------------------------------------------------------------------------


ALONE = "Answer like this: <answer>...</answer>"


def dear_if_right(completions, answer, **kwargs):
    right = exact(completions, answer)
    return [max(-0.5, 1 - len(text(each)) / 100) if paid else 0.0 for each, paid in zip(completions, right)]


def nothing_around(completions, **kwargs):
    return [1.0 if re.fullmatch("<answer>.*</answer>", text(each)) else -1.0 for each in completions]


def test_longer_reasoning_is_tried_where_the_format_has_no_place_for_it():
    assert "longer reasoning earns -0.5, less" in said(audit(dear_if_right, system=ALONE), "long")
    # what is dear there is the form, not the length
    assert not said(audit([exact, nothing_around], system=ALONE, reward_weights=[1.0, 2.0]), "long")
    found = audit([exact, nothing_around], system=ALONE)
    assert next(each.total for each in found.probes if each.name == "long reasoning") == 0.0


def of_the_prompt(prompts, completions, **kwargs):
    return [1.0 if "zzz" in str(each) else 0.5 for each in prompts]


def beside_each(prompts, completions, **kwargs):
    scores = []
    for asked, _ in zip(prompts, completions):
        scores.append(float("zzz" in str(asked)))
    return scores


def nearly_the_prompt(prompts, completions, **kwargs):
    return [len(str(p)) % 7 + (1.0 if "zzz" in text(c) else 0.0) for p, c in zip(prompts, completions)]


def of_the_first(completions, **kwargs):
    return [len(text(completions[0])) % 5 / 5] * len(completions)


@pytest.mark.parametrize("system", [ALONE, "Write a haiku."])
@pytest.mark.parametrize("function", [of_the_prompt, beside_each])
def test_one_that_looks_at_no_completion_is_an_error_though_the_reference_is_a_guess(function, system):
    assert overlooks(function)
    [error] = [each for each in audit(function, system=system, answers=["a"] * 4).findings if each.kind == "constant"]
    assert (error.severity, "does not look at the completions" in error.text) == ("error", True)
    assert "never reached" not in error.text


def test_one_that_looks_is_not_said_to_look_away():
    found = said(audit([exact, nearly_the_prompt]), "constant")
    assert "`1.0`" in found
    assert "does not look" not in found
    assert "in a batch all earn the same" in said(audit([exact, of_the_first], system=ALONE), "constant")


def counts(completions, **kwargs):
    return [1.0] * len(completions)


def lengths(completions, **kwargs):
    return [len(each) for each in completions]


def ids(completions, completion_ids, **kwargs):
    return [len(each) for each in completion_ids]


def handed_on(prompts, **kwargs):
    return exact(**kwargs)


def in_pairs(prompts, completions, **kwargs):
    return [len(own) for _, (_, own) in enumerate(zip(prompts, completions))]


def by_index(completions, **kwargs):
    return [len(completions[n]) for n in range(len(completions))]


def other_style(solution_str, **kwargs):
    return 1.0


def test_what_looks_at_a_completion():
    assert overlooks(counts)
    for function in (lengths, ids, handed_on, in_pairs, by_index, other_style, lambda completions, **_: [1.0], len):
        assert not overlooks(function)


def lax_on_7(completions, answer, **kwargs):
    right = exact(completions, answer)
    return [1.0 if own == "7" and text(each).strip() else paid for each, own, paid in zip(completions, answer, right)]


def test_rows_that_pay_a_wrong_answer_are_named_and_how_many_were_tried():
    found = said(audit(lax_on_7), "silence")
    assert "'a wrong answer'" in found
    assert found.splitlines()[0].endswith("on 1 of 4 prompts: row 1 (answer '7')")
    some = said(audit(lax_on_7, ["7", *map(str, range(10, 18))]), "silence")
    assert some.splitlines()[0].endswith("on 1 of 6 prompts: row 0 (answer '7'); 6 of 9 rows were tried")


def test_a_prompt_with_a_token_that_the_embedding_lacks_is_refused_as_in_the_plan():
    tokenizer = load_tokenizer()
    tokenizer.add_tokens(["<|plan|>"])
    rows = [{"prompt": to_messages(f"Question {n}?", TAGS + " <|plan|>" * (n == 7)), "answer": str(n)} for n in range(9)]
    with pytest.raises(PolicyError, match=r"none for <\|plan\|>"):
        audit_rewards(Task("t", rows, [exact]), tokenizer=tokenizer)
    assert audit_rewards(Task("t", rows[:7], [exact]), tokenizer=tokenizer).rows == 6
