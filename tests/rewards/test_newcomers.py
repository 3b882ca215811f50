"""What newcomers wrote: each flaw is named with its cause, right rewards are clean, and what was guessed is no error."""

from __future__ import annotations

import json
import re
from statistics import fmean

import pytest

from workbench.audit.completions import builders
from workbench.audit.examination import RewardAudit, audit_rewards
from workbench.audit.prompt_format import format_advice, grader_for, parse_format
from workbench.base.errors import DataError, TaskError
from workbench.data.answer_column import has_constant
from workbench.data.checks import check
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.rewards.library import correctness_reward, strict_format_reward
from workbench.rewards.scoring import score
from workbench.rewards.verifiers import json_of, json_right_reward, json_schema_reward, json_values_reward, make_json_reward
from workbench.task import Task

SUMS = [(17, 4), (9, 8), (30, 12), (5, 6), (40, 7), (21, 3)]
SENTIMENTS = ["positive", "negative", "neutral"]
SHOWS_JSON = "Rate the review. Reply with one object and nothing else: " + ", ".join(
    json.dumps({"sentiment": each}) for each in SENTIMENTS
)
REVIEWS = ["I love it.", "It broke at once.", "It is a phone.", "Great!", "Never again.", "Fine, I guess."]
SCHEMA = {
    "type": "object", "required": ["sentiment"], "additionalProperties": False,
    "properties": {"sentiment": {"enum": SENTIMENTS}},
}  # fmt: skip


def sums(answer=str, **columns) -> list[dict]:
    return [{"prompt": to_messages(f"What is {a} + {b}?", SYSTEM_PROMPT), "answer": answer(a + b), **columns} for a, b in SUMS]


def reviews(system: str = SHOWS_JSON, answer=str) -> list[dict]:
    return [
        {"prompt": to_messages(text, system), "answer": answer(SENTIMENTS[number % 3])} for number, text in enumerate(REVIEWS)
    ]


def yes_or_no() -> list[dict]:
    return [{"prompt": to_messages(f"Is {n} even?", "Reply yes or no."), "answer": ("no", "yes")[n % 2]} for n in range(6)]


def text_of(completion) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def block(text: str) -> str | None:
    found = re.search(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
    return found and found[1]


def reads_text_alone(completions, answer, **kwargs):
    texts = [each if isinstance(each, str) else "" for each in completions]
    return [1.0 if block(text) == right else 0.0 for text, right in zip(texts, answer)]


def pays_length(completions, answer, **kwargs):
    return [(block(text_of(each)) == right) + len(text_of(each)) / 400 for each, right in zip(completions, answer)]


def compares_numbers_with_text(completions, answer, **kwargs):
    return [2.0 if block(text_of(each)) == right else 0.0 for each, right in zip(completions, answer)]


def fails_on_silence(completions, answer, **kwargs):
    return [1.0 if text_of(each).split()[-2] == right else 0.0 for each, right in zip(completions, answer)]


def looks_for_tags_anywhere(completions, **kwargs):
    return [1.0 if all(tag in text_of(each) for tag in ("<reasoning>", "<answer>")) else 0.0 for each in completions]


def looks_for_letters(completions, answer, **kwargs):
    return [1.0 if right in text_of(each).lower() else 0.0 for each, right in zip(completions, answer)]


def pays_the_batch(completions, answer, **kwargs):
    scores = [1.0 if block(text_of(each)) == right else 0.0 for each, right in zip(completions, answer)]
    return [fmean(scores)] * len(scores)


def takes_messages_for_text(completions, answer, **kwargs):
    pattern = r"<reasoning>\n.*\n</reasoning>\n<answer>\n(.*)\n</answer>\n?"
    found = [re.fullmatch(pattern, str(each), re.DOTALL) for each in completions]
    return [1.0 if each and each[1] == right else 0.0 for each, right in zip(found, answer)]


def right_alone(completions, answer, **kwargs):
    return [
        1.0 if block(text_of(e)) == right and text_of(e).count("<answer>") == 1 else 0.0 for e, right in zip(completions, answer)
    ]


def sentiment_reward(completions, answer, **kwargs):
    scores = []
    for completion, right in zip(completions, answer):
        try:
            given = json.loads(text_of(completion))
        except ValueError:
            given = None
        scores.append(1.0 if given == {"sentiment": right} else 0.0)
    return scores


def severities(found: RewardAudit) -> dict[str, str]:
    return {each.kind: each.severity for each in found.findings}


def errors(found: RewardAudit) -> str:
    return "\n".join(str(each) for each in found.findings if each.severity == "error")


@pytest.mark.parametrize(
    ("function", "rows", "cause"),
    [
        (
            reads_text_alone,
            sums(),
            r"it reads plain text, but gets chat messages: with plain text it pays 1\n.*completion_text",
        ),
        (pays_length, sums(), r"'very long, cut at the limit'"),
        (compares_numbers_with_text, sums(int), r"of type int here \(21\).*with str\(answer\) it pays 2\n.*str\(answer\)"),
        (fails_on_silence, sums(), r"raised IndexError: .*test_newcomers.py:\d+.*the first is 'empty': ''"),
        (looks_for_tags_anywhere, sums(), r"'tags in the wrong order'"),
        (looks_for_letters, yes_or_no(), r"'the answer inside a longer word'"),
        (pays_the_batch, sums(), r"alone a reference completion earns 1, an empty one 0; in a batch all earn the same"),
        (takes_messages_for_text, sums(), r"it reads plain text, but gets chat messages"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_flaw_is_named_with_its_cause(function, rows, cause):
    found = audit_rewards(Task("t", rows, [function]))
    assert not found.ok
    assert re.search(cause, errors(found), re.DOTALL), errors(found)


def test_the_cause_stands_in_place_of_a_remedy_that_is_about_something_else():
    [error] = [
        each for each in audit_rewards(Task("t", sums(int), [compares_numbers_with_text])).findings if each.severity == "error"
    ]
    assert error.kind == "constant"
    assert "weight 0" not in error.remedy


def test_plain_prompts_and_a_function_that_reads_messages():
    def reads_messages_alone(completions, answer, **kwargs):
        texts = ["" if isinstance(each, str) else each[0]["content"] for each in completions]
        return [1.0 if block(text) == right else 0.0 for text, right in zip(texts, answer)]

    rows = [{**row, "prompt": "\n".join(each["content"] for each in row["prompt"])} for row in sums()]
    assert "it reads chat messages, but gets plain text" in errors(audit_rewards(Task("t", rows, [reads_messages_alone])))


@pytest.mark.parametrize(
    "task",
    [
        Task("exact", sums(), [right_alone]),
        Task("exact and strict", sums(), [right_alone, strict_format_reward]),
        Task("shipped", sums(), [correctness_reward, strict_format_reward]),
        Task("shown JSON", reviews(), [sentiment_reward, make_json_reward(SCHEMA)]),
        Task("schema alone", reviews("Rate the review."), [sentiment_reward, make_json_reward(SCHEMA)]),
        Task("no system message", reviews(""), [sentiment_reward, make_json_reward(SCHEMA)]),
        Task("objects", reviews(answer=lambda word: json.dumps({"sentiment": word})), [json_right_reward]),
        Task("said by the task", reviews(), [sentiment_reward], ideal=lambda row: json.dumps({"sentiment": row["answer"]})),
    ],
    ids=lambda task: task.name,
)
def test_right_rewards_are_clean(task):
    found = audit_rewards(task)
    assert found.ok, found.findings
    warned = [each for each in found.findings if each.severity == "warning"]
    counted = f"0 errors, {len(warned)} warning"
    assert (counted if warned else "nothing is wrong") in found.verdict
    assert not {"cannot_pay", "constant", "hackable", "right_by"} & severities(found).keys()
    if "JSON" in found.format:
        assert found.reference == '{"sentiment": "positive"}'
        assert found.reference_total == pytest.approx(len(task.reward_funcs))


# --- JSON that a prompt shows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "answer", "written", "guessed"),
    [
        (SHOWS_JSON, "negative", '{"sentiment": "negative"}', False),
        ('Reply as {"grade": 3}.', "5", '{"grade": 5}', False),
        ('Reply as JSON: {"why": "...", "answer": "yes"}', "no", '{"why": "...", "answer": "no"}', False),
        ('Reply as JSON: {"why": "...", "label": "yes|no"}', "no", '{"why": "...", "label": "no"}', True),
        ('Reply as JSON: {"why": "...", "grade": 3}', "5", '{"why": "...", "grade": 5}', True),
        ("Reply as JSON to this schema: " + json.dumps(SCHEMA), "neutral", '{"sentiment": "neutral"}', False),
        ('<think>why</think>\n<answer>{"x": 1}</answer>', "42", '<think>so</think>\n<answer>{"x": 42}</answer>', False),
        ("Be brief.", '{"age": 41}', '{"age": 41}', False),
        ('Reply as {"total": <int>}', "5", '{"total": 5}', False),
        ('Reply as { "total" : number }.', "4.5", '{"total": 4.5}', False),
        ('Reply as {"total": <str>}', "5", '{"total": "5"}', False),
        ('Reply as {"total": ...}', "5", '{"total": 5}', True),  # or "5"?
        ('Reply as {"total": "<int>"}', "5", '{"total": "5"}', True),  # or 5?
        ('Reply as {"mood": <one word>}', "good", '{"mood": "good"}', False),
        ('Reply as JSON: {"total": <int>, "why": <text>}', "5", '{"total": 5, "why": null}', True),
        ('Reply as {"mood": "good" | "bad"}', "bad", '{"mood": "bad"}', False),
    ],
)
def test_the_answer_is_put_where_the_shown_json_has_it(system, answer, written, guessed):
    found = parse_format({"prompt": to_messages("?", system)}, answer)
    assert (found.json, found.write("so", answer), found.guessed) == (True, written, guessed)


def total_reward(completions, answer, **kwargs):  # a right one for answers that are numbers
    pairs = [(json_of(text_of(each)), right) for each, right in zip(completions, answer)]
    return [1.0 if isinstance(said, dict) and said.get("total") == right else 0.0 for said, right in pairs]


def as_text_reward(completions, answer, **kwargs):
    pairs = [(json_of(text_of(each)), right) for each, right in zip(completions, answer)]
    return [1.0 if isinstance(said, dict) and str(said.get("total")) == right else 0.0 for said, right in pairs]


def totals(shown: str, answer=str, system: bool = True) -> list[dict]:
    prompts = [
        to_messages(text, shown) if system else to_messages(f"{text} {shown}")
        for text in (f"What is {a} + {b}?" for a, b in SUMS)
    ]
    return [{"prompt": prompt, "answer": answer(a + b)} for prompt, (a, b) in zip(prompts, SUMS)]


@pytest.mark.parametrize("shown", ['Answer as {"total": <int>}', 'Answer as JSON: {"total": 7}'])
@pytest.mark.parametrize(
    ("function", "answer", "cause"),
    [(total_reward, str, "with int(answer) it pays 1"), (as_text_reward, int, "with str(answer) it pays 1")],
)
def test_a_number_against_text_in_json_is_found_and_named(shown, function, answer, cause):
    found = audit_rewards(Task("t", totals(shown, answer), [function]))
    [error] = [each for each in found.findings if each.severity == "error"]
    assert (found.format, found.reference, error.kind) == ("JSON", '{"total": 21}', "constant")
    assert cause in error.text


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize(("function", "answer"), [(total_reward, int), (as_text_reward, str)])
def test_right_rewards_for_json_whose_type_is_shown_are_clean(function, answer, system):
    found = audit_rewards(Task("t", totals('Answer as {"total": <int>}', answer, system), [function]))
    assert (found.ok, found.guessed, found.reference) == (True, False, '{"total": 21}')
    # no spelling: $21 is no number of JSON
    assert not severities(found).keys() - {"padding"}, found.findings


def test_a_type_that_the_prompt_leaves_open_is_written_as_it_pays():
    def wants_text(completions, answer, **kwargs):
        return [1.0 if json_of(text_of(each)) == {"total": right} else 0.0 for each, right in zip(completions, answer)]

    found = audit_rewards(Task("t", totals('Answer as {"total": ...}'), [wants_text]))
    assert (found.ok, found.reference, severities(found)) == (True, '{"total": "21"}', {"layout": "warning"})
    named = audit_rewards(Task("t", totals('Answer as {"total": <int>}'), [wants_text]))
    assert "with int(answer)" in errors(named)


@pytest.mark.parametrize("answer", [str, int])
def test_the_hacks_of_a_json_ideal_are_json(answer):
    ideal = lambda row: json.dumps({"steps": ["add"], "total": {"value": int(row["answer"])}})  # noqa: E731
    found = audit_rewards(Task("t", totals("Add.", answer), [total_reward], ideal=ideal))
    hacks = {probe.name: json_of(probe.example) for probe in found.probes}
    for name, value in (
        ("a wrong answer", 22),
        ("negation", "definitely not 21."),
        ("the answer in the wrong place", "see above"),
    ):
        assert hacks[name] == {"steps": ["add"], "total": {"value": value}}
    assert "other_rewards" not in severities(found)  # the task says itself what is right


def test_a_function_that_fails_on_the_reference_is_not_said_not_to_apply():
    def fails_where_it_pays(completions, **kwargs):
        return [0.0 if "<answer>" not in text_of(each) else 1 / 0 for each in completions]

    assert severities(audit_rewards(Task("t", sums(), [fails_where_it_pays]))).get("sometimes") is None

    def applies_never(completions, **kwargs):
        return [None if "<answer>" in text_of(each) else 0.0 for each in completions]

    assert severities(audit_rewards(Task("t", sums(), [applies_never])))["sometimes"] == "note"


@pytest.mark.parametrize(
    ("system", "question"),
    [
        ("", 'Given the JSON {"x": 3}, what is x + 1?'),  # data
        ('Tools: [{"name": "search", "about": "?"}, {"name": "4", "about": "?"}]', "Which?"),
        ('Tools: {"name": "search"} and more', "Put the answer in \\boxed{}."),
        ("Sets are written {1, 2}, and so on {", "?"),
        ("", 'What does {"x": y} hold?'),
        ("{" * 9000, "?"),
    ],
)
def test_braces_that_are_no_format(system, question):
    assert not parse_format({"prompt": to_messages(question, system)}, "4").json


@pytest.mark.parametrize(
    "shown",
    [
        '{"properties": [1], "type": ["object"]}', '{"properties": {"a": true, "b": {"type": ["string", "null"], "enum": 3}}}',
        '{"a": ' * 3000 + "1" + "}" * 3000, '{"properties": {}}', "{}",
    ],
)  # fmt: skip
def test_whatever_json_a_prompt_shows_is_read_without_an_error(shown):
    parse_format({"prompt": to_messages("JSON?", f"Reply as JSON: {shown}")}, "4").write("so", "4")


@pytest.mark.parametrize("levels", [40, *range(800, 1000, 20)])  # some of these can be read near Python's limit, and not written
def test_nested_json_is_read_up_to_a_depth_of_its_own(levels):
    shown = '{"a": ' * levels + "1" + "}" * levels
    shapes = parse_format({"prompt": to_messages("JSON?", f"Reply as JSON: {shown}")}, "4").shapes
    assert bool(shapes) == (levels < 50)


@pytest.mark.parametrize(("function", "word"), [(json_right_reward, "'positive'"), (json_values_reward, "'positive'")])
def test_words_where_a_function_reads_json_are_named_once(function, word):
    found = audit_rewards(Task("t", reviews(), [function]))
    [error] = [each for each in found.findings if each.severity == "error"]
    assert (error.kind, error.text) == ("needs_column", f"needs JSON text in 'answer', and row 0 has {word}")
    assert '{"label": "positive"}' in error.remedy
    with pytest.raises(TaskError, match="needs JSON text in 'answer'"):
        score(function, reviews()[0], ["{}"])


def test_a_schema_that_is_no_json_is_named_too_and_an_array_may_be_right():
    with pytest.raises(TaskError, match="needs JSON text in 'schema', and row 0 has 'x'"):
        score(json_schema_reward, {"prompt": "?", "schema": "x"}, ["{}"])
    assert score(json_right_reward, {"prompt": "?", "answer": "[1]"}, ["[1]", "[2]"]).totals.tolist() == [1, 0]


# --- what was guessed --------------------------------------------------------------------------------------------


def needs_a_poem(completions, **kwargs):
    return [1.0 if text_of(each).count("\n") == 16 else 0.0 for each in completions]


def punishes_length(completions, **kwargs):
    return [1.0 - min(1.0, len(text_of(each)) / 60) for each in completions]


def runs_a_program(completions, **kwargs):
    return [1.0 if "def strategy" in text_of(each) else -1.0 if "def" in text_of(each) else None for each in completions]


OPEN = [{"prompt": to_messages(f"Write about {word}.")} for word in ("rain", "snow", "fog", "wind", "hail")]
TWO_FIELDS = {"type": "object", "properties": {"why": {"minLength": 9}, "mood": {"type": "string"}}, "required": ["why", "mood"]}


@pytest.mark.parametrize(
    "task",
    [
        Task("poem", OPEN, [needs_a_poem]),
        Task("brief", OPEN, [punishes_length]),
        Task("program", OPEN, [runs_a_program]),
        Task("json nobody can guess", reviews("Reply as JSON."), [make_json_reward(TWO_FIELDS)]),
        Task("format that nobody asked for", reviews("Be brief."), [strict_format_reward]),
        Task("both", reviews("Reply as JSON."), [make_json_reward(TWO_FIELDS), needs_a_poem]),
    ],
    ids=lambda task: task.name,
)
def test_a_reference_that_was_guessed_never_makes_an_error(task):
    found = audit_rewards(task)
    assert found.ok, found.findings
    assert found.guessed
    assert re.search(r"0 errors.*, and the reference was guessed$", found.verdict)


def test_a_guess_that_pays_more_than_a_wrong_answer_is_confirmed_and_its_hacks_are_errors():
    found = audit_rewards(Task("t", yes_or_no(), [looks_for_letters]))
    assert (found.guessed, severities(found)["hackable"]) == (False, "error")


# --- the same answer everywhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [0, "0"])
def test_a_constant_column_is_no_answer(answer):
    rows = sums(lambda _: answer)
    found = audit_rewards(Task("t", rows, [strict_format_reward]))
    assert found.ok
    assert severities(found)["answer_column"] == "warning"
    assert not {"hackable", "right_by"} & severities(found).keys()
    assert not builders(Task("t", rows, [strict_format_reward]), rows)[0].has_answer
    assert any("every row has '0', which is no answer" in note for note in check(rows, progress=lambda _: None).notes)
    with pytest.raises(DataError, match="no ruler yet: every row has the same answer"):
        grader_for(rows[0], has_constant(rows))


def test_a_game_with_the_answer_0_in_every_row_has_no_errors_and_no_hacks():
    def works(completions, **kwargs):
        return [1.0 if "def strategy" in text_of(each) else -2.0 for each in completions]

    def does_not_cheat(completions, **kwargs):
        return [-20.0 if "import os" in text_of(each) else 1.0 for each in completions]

    asked = "Write a strategy for 2048 in backticks:\n```python\ndef strategy(board):\n    return 'W'\n```"
    rows = [{"prompt": to_messages(f"{asked}\nGame {game}."), "answer": 0} for game in range(8)]
    found = audit_rewards(Task("2048", rows, [works, does_not_cheat]))
    assert found.ok, found.findings
    assert "hackable" not in severities(found)


def test_a_few_rows_may_have_one_answer_and_an_ideal_needs_none():
    assert not has_constant(sums(lambda _: "0")[:3])
    assert not has_constant([{"prompt": "?"}] * 9)
    assert not any("no answer" in note for note in check(sums(), progress=lambda _: None).notes)
    said = audit_rewards(
        Task("t", sums(lambda _: "0"), [strict_format_reward], ideal=lambda row: "<reasoning>a</reasoning><answer>b</answer>")
    )
    assert "answer_column" not in severities(said)


# --- 01's ruler --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "answer", "ruler", "right", "wrong"),
    [
        (SHOWS_JSON, "negative", "shown_json_reward", '{"sentiment": "negative"}', "negative"),
        (SHOWS_JSON, "negative", "shown_json_reward", '```json\n{"sentiment": "negative"}\n```', '{"sentiment": "positive"}'),
        ("Be brief.", '{"a": 1}', "json_right_reward", '{"a": 1}', '{"a": 2}'),
        ("Put it in \\boxed{}.", "42", "boxed_correctness_reward", "so \\boxed{42}", "42"),
    ],
)
def test_the_ruler_pays_what_the_prompt_asks_for(system, answer, ruler, right, wrong):
    row = {"prompt": to_messages("?", system), "answer": answer}
    grader = grader_for(row)
    assert grader.__name__ == ruler
    paid = grader(prompts=[row["prompt"]] * 2, completions=[right, wrong], answer=[answer] * 2)
    assert paid[0] > 0 == paid[1]


def test_the_json_ruler_pays_no_text_as_it_is_called_in_a_profile():
    row = reviews()[0]
    found = score(grader_for(row), row, ["positive", "", "so {", '{"sentiment": "positive"}', 'Sure! {"sentiment": "positive"}'])
    assert found.totals.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("system", ["Put it in <SOLUTION></SOLUTION>.", 'Reply as JSON: {"why": "...", "grade": 3}'])
def test_where_nothing_reads_the_format_there_is_no_ruler_and_the_advice_names_what_fits(system):
    row = {"prompt": to_messages("?", system), "answer": "5"}
    with pytest.raises(DataError, match=r"(?s)no ruler yet: .*task="):
        grader_for(row)
    assert "last_line_reward" not in format_advice(row)
    assert "one of your own for what is right" in format_advice(row)


def label_reward(completions, answer, **kwargs):
    """Pays any label: the comparison with the answer was forgotten."""
    return [float(each[0]["content"].strip().lower() in SENTIMENTS) for each in completions]


def number_reward(completions, answer, **kwargs):
    return [float(each[0]["content"].strip().isdigit()) for each in completions]


def short_reward(completions, answer, **kwargs):
    return [float(len(each[0]["content"].split()) == 1) for each in completions]


@pytest.mark.parametrize(
    ("function", "asked", "answers"),
    [
        (label_reward, "Positive, negative or neutral?", SENTIMENTS),
        (number_reward, "How many?", ["3", "14", "15"]),
        (short_reward, "Which town?", ["Oslo", "Lima", "Rome"]),
    ],
)
def test_a_reward_that_never_looks_at_the_answer_pays_a_wrong_one(function, asked, answers):
    rows = [{"prompt": to_messages(f"{asked} {number}"), "answer": answers[number % 3]} for number in range(9)]
    found = audit_rewards(Task("t", rows, [function]))
    [alone] = [each for each in found.probes if each.name == "a wrong answer alone"]
    assert (alone.share, alone.right) == (1.0, False)
    assert [each.kind for each in found.findings if each.severity != "note" and "a wrong answer alone" in each.text]
