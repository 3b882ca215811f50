"""Checks: every row is kept, repaired by a stated rule, or listed with its reason; the counts always add up."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.dataset import reasons
from workbench.dataset.checks import Checked, check_rows
from workbench.dataset.prompts import SYSTEM_PROMPT
from workbench.run.errors import DataError


def chat(*messages):
    return [{"role": role, "content": content} for role, content in messages]


def row(text="What is 1 + 1?", **columns):
    return {"prompt": chat(("user", text)), "answer": "2", **columns}


# One row of each kind that must be left out, and the beginning of its reason.
BAD = [
    ("not a dict", reasons.NOT_AN_OBJECT),
    (None, reasons.NOT_AN_OBJECT),
    ([1, 2], reasons.NOT_AN_OBJECT),
    ({"answer": "2"}, "no prompt"),
    ({"prompt": None, "answer": "2"}, "no prompt"),
    ({"prompt": " \n ", "answer": "2"}, reasons.EMPTY),
    ({"prompt": chat(("user", " ")), "answer": "2"}, reasons.EMPTY),
    ({"prompt": "\ufeff\u200b", "answer": "2"}, reasons.EMPTY),
    ({"prompt": [], "answer": "2"}, "prompt is neither"),
    ({"prompt": 7, "answer": "2"}, "prompt is neither"),
    ({"prompt": {"text": "x"}, "answer": "2"}, "prompt is neither"),
    ({"prompt": ["hello"], "answer": "2"}, "a message is not"),
    ({"prompt": [{"role": "user"}], "answer": "2"}, "a message is not"),
    ({"prompt": [{"content": "x"}], "answer": "2"}, "a message is not"),
    ({"prompt": chat(("user", None)), "answer": "2"}, "a message's content is not text"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "2"}, "a message holds something other"),
    ({"prompt": chat(("robot", "x")), "answer": "2"}, "a message's role"),
    ({"prompt": chat((["user"], "x")), "answer": "2"}, "a message's role"),
    ({"prompt": chat(("user", "x"), ("assistant", "y")), "answer": "2"}, "the last message is the assistant's"),
    ({"prompt": chat(("system", "x")), "answer": "2"}, "no message is the user's"),
    ({"prompt": chat(("user", "x"), ("system", "y"), ("user", "z")), "answer": "2"}, "a system message stands"),
    ({"prompt": chat(("user", "q1"))}, "no answer"),
    ({"prompt": chat(("user", "q2")), "answer": " "}, "answer is empty"),
    ({"prompt": chat(("user", "q3")), "answer": float("nan")}, "answer is not a finite number"),
    ({"prompt": chat(("user", "q4")), "answer": True}, "answer is true or false"),
    ({"prompt": chat(("user", "q5")), "answer": []}, "answer is an empty list"),
    ({"prompt": chat(("user", "q6")), "answer": ["1", "2"]}, "answer is a list of several"),
    ({"prompt": chat(("user", "q7")), "answer": {"value": 1}}, "answer is an object"),
    ({"prompt": chat(("user", "q8")), "answer": "1", "completions": []}, "column 'completions' is reserved"),
    ({"prompt": chat(("user", "q9")), "answer": "1", "trainer_state": 1}, "column 'trainer_state' is reserved"),
    ({"prompt": chat(("user", "q10 Answer: 12")), "answer": "12"}, reasons.LEAK),
    ({"prompt": chat(("user", "q11 #### 12")), "answer": "12"}, reasons.LEAK),
    ({"prompt": chat(("user", "y" * 100_001)), "answer": "1"}, "prompt has more than 100000 characters"),
    ({"prompt": chat(("user", "q12")), "answer": "1", "level": [1]}, "column 'level' is a list, and a number"),
    ({"prompt": "plain text", "answer": "1"}, reasons.MIXED),
    (row(), reasons.DUPLICATE),
    (row(answer="3"), reasons.CONTRADICTS),
    (row("held  out"), reasons.CONTAMINATED),
]
GOOD = row(level=1)
OTHER = [row("held out")]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[str(place) for place in range(len(BAD))])
def test_each_fault_has_its_reason_and_a_remedy(bad, reason):
    report = check_rows([GOOD, bad, row("another")], other=OTHER)
    [(number, found)] = report.left_out
    assert number == 1
    assert found.startswith(reason)
    assert reasons.remedy(found) != ""
    assert len(report.kept) == 2


def test_a_thousand_malformed_rows_of_many_kinds_are_all_accounted_for(home):
    """Every kind above, and every kind of broken line, in a file: each row is found under its own reason."""
    draw = random.Random(0)
    kinds = [(json.dumps(bad), reason) for bad, reason in BAD]
    kinds += [("{torn", "line is not JSON"), ("\xff", "line is not UTF-8"), ("[" * 50_000, "line is nested too deeply")]
    assert len({reason for _, reason in kinds}) >= 20
    lines, expected = [json.dumps(GOOD)], {}
    for number in range(1, 1001):
        text, reason = kinds[number % len(kinds)] if number < 100 else draw.choice(kinds)
        lines.append(text)
        expected[number] = reason
    for number in range(1001, 1101):
        lines.append(json.dumps(row(f"good {number}")))
    file = home / "malformed.jsonl"
    file.write_bytes(
        b"\n".join(line.encode("latin-1" if line == "\xff" else "utf-8") for line in lines) + b'\n{"prompt": "half'
    )
    report = check_rows(file, other=OTHER)
    assert report.read == 1102 == report.kept_rows + len(report.left_out)
    assert len(report.kept) == 101
    found = dict(report.left_out)
    assert found.pop(1101) == "last line is half-written"
    assert found.keys() == expected.keys()
    wrong = {
        number: (found[number], reason) for number, reason in expected.items() if not found[number].startswith(reason)
    }
    # A second empty-answer row and its like never become duplicates: only rows that were kept are remembered.
    assert not wrong
    assert sum(report.reasons.values()) == 1001
    machine = report.found()
    assert machine["kept"] + machine["left_out"] == machine["read"]
    assert sum(reason["count"] for reason in machine["reasons"]) == machine["left_out"]
    assert sorted(number for reason in machine["reasons"] for number in reason["rows"]) == sorted({*expected, 1101})
    json.dumps(machine, allow_nan=False)


@pytest.mark.parametrize(
    ("odd", "rule", "prompt", "answer"),
    [
        ({"prompt": "q", "answer": 4}, "answer: number written as text", "q", "4"),
        ({"prompt": "q", "answer": 4.0}, "answer: number written as text", "q", "4"),
        ({"prompt": "q", "answer": 0.25}, "answer: number written as text", "q", "0.25"),
        ({"prompt": "q", "answer": " 4\n"}, "answer: surrounding white space taken off", "q", "4"),
        ({"prompt": "q", "answer": ["4"]}, "answer: taken out of a list of one", "q", "4"),
        ({"prompt": "a\r\nb\rc", "answer": "4"}, "text: CRLF line ends written as LF", "a\nb\nc", "4"),
        ({"prompt": "a\x00b\x07", "answer": "4"}, "text: control characters taken out", "ab", "4"),
        ({"prompt": "\ufeffa\u200bb", "answer": "4"}, "text: invisible characters", "ab", "4"),
        ({"prompt": "a\ud800b", "answer": "4"}, "text: half a surrogate pair", "a\ufffdb", "4"),
        ({"prompt": {"role": "user", "content": "q"}, "answer": "4"}, "prompt: a single message", chat(("user", "q")), "4"),
        ({"prompt": [{"from": "human", "value": "q"}], "answer": "4"}, "prompt: from/value", chat(("user", "q")), "4"),
        ({"prompt": chat(("human", "q")), "answer": "4"}, "prompt: role 'human'", chat(("user", "q")), "4"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "answer": "4"},
         "prompt: a list of text parts", chat(("user", "q")), "4"),
    ],
)  # fmt: skip
def test_repairs_are_stated_and_the_row_is_kept(odd, rule, prompt, answer):
    report = check_rows([odd])
    assert any(found.startswith(rule) for found in report.repairs)
    assert report.kept == [{"prompt": prompt, "answer": answer}]
    assert (report.kept_rows, report.repaired_rows) == (1, 1)
    json.dumps(report.kept).encode()


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"prompt": "caf\ufffd", "answer": "4"}, reasons.REPLACED),
        ({"prompt": "cafÃ©", "answer": "4"}, reasons.MOJIBAKE),
        (
            {"prompt": "It says: the quick brown fox jumps. What says it?", "answer": "the quick brown fox jumps"},
            reasons.VERBATIM,
        ),
    ],
)
def test_what_looks_odd_is_kept_and_said(odd, said):
    report = check_rows([odd])
    assert report.kept_rows == 1
    assert list(report.warnings) == [said]


def test_objects_whose_keys_differ_are_said():
    rows = [{"prompt": f"q{n}", "answer": "1", "meta": {"a": 1} if n else {"b": 1}} for n in range(3)]
    report = check_rows(rows)
    assert report.kept_rows == 3
    assert report.warnings == {"column 'meta' is an object with other keys than before": 2}


@pytest.mark.parametrize("question", ["Tom has 12 eggs.", "Is 112 > 12?", "Answer: 120 or 121?", "the answer is what?"])
def test_an_answer_that_only_happens_to_stand_in_the_question_is_no_leak(question):
    assert check_rows([{"prompt": question, "answer": "12"}]).kept_rows == 1


def test_text_becomes_chat_with_a_system_message_and_columns_keep_their_names():
    rows = [
        {"query": "What is 2+2?", "ground_truth": 4, "id": 1},
        {"query": "What is 3+3?", "ground_truth": 6, "id": 2},
    ]
    report = Checked(rows, system=SYSTEM_PROMPT).collect()
    assert report.kept[0] == {
        "prompt": chat(("system", SYSTEM_PROMPT), ("user", "What is 2+2?")),
        "answer": "4",
        "id": 1,
    }
    assert len(report.notes) == 2
    assert "'query'" in report.notes[0]
    assert "'ground_truth'" in report.notes[1]


def test_a_chat_that_has_its_own_system_message_keeps_it():
    own = chat(("system", "mine"), ("user", "q"))
    assert Checked([{"prompt": own, "answer": "1"}], system=SYSTEM_PROMPT).collect().kept[0]["prompt"] == own


def test_gsm8ks_rationale_is_parsed_and_kept(gsm8k_file):
    report = Checked(gsm8k_file, numbers=True).collect()
    assert report.kept_rows == 298
    assert report.kept[0]["answer"] == "6"
    assert report.kept[-1]["answer"] == "1194", "without the comma of 1,194"
    assert report.kept[0]["rationale"].endswith("#### 6")
    assert any("####" in note for note in report.notes)


def test_a_rationale_without_its_mark_is_left_out():
    rows = [{"question": f"q{n}", "answer": f"so\n#### {n}"} for n in range(5)]
    rows += [
        {"question": "x", "answer": "18"},
        {"question": "y", "answer": "#### "},
        {"question": "z", "answer": "#### many"},
    ]
    assert dict(Checked(rows, numbers=True).collect().left_out) == {
        5: "answer has no ####",
        6: "answer has no ####",
        7: reasons.NO_NUMBER,
    }
    # Where it is said that the whole column is the answer, it is.
    assert Checked(rows, answer_after=None).collect().kept[0]["answer"] == "so\n#### 0"


def test_a_task_without_answers_needs_none():
    assert len(check_rows([{"prompt": "x"}], answer_column=None).kept) == 1


@pytest.mark.parametrize("rows", [[], [1, 2]])
def test_no_rows_at_all(rows):
    with pytest.raises(DataError, match="no rows|no row of the first"):
        Checked(rows)


def test_a_pass_can_be_made_again():
    checked = Checked([{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "1"}])
    assert [len(list(checked)), len(list(checked))] == [1, 1]
    assert (checked.report.read, checked.report.kept_rows) == (2, 1)


def test_the_report_reads_well():
    report = check_rows([row(), row(), {"prompt": chat(("user", "q")), "answer": 5}])
    assert str(report).splitlines() == [
        "3 rows read, 2 kept (1 of them repaired), 1 left out; rows are counted from 0",
        "left out:",
        "        1  prompt is a duplicate of an earlier row  (row 1)",
        "           e.g. {'prompt': [{'role': 'user', 'content': 'What is 1 + 1?'}], 'answer': '2'}",
        "           -> nothing: the first of them was kept",
        "repaired and kept:",
        "        1  answer: number written as text  (row 2)",
    ]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["prompt", "answer", "level", "completions"]), anything) | anything, max_size=12
    )
)
def test_any_rows_add_up_and_those_kept_can_be_written_and_trained_on(rows):
    report = check_rows([GOOD, *rows])
    assert report.read == len(rows) + 1 == report.kept_rows + len(report.left_out)
    for kept in report.kept:
        json.dumps(kept["prompt"], ensure_ascii=False).encode()
        assert kept["answer"].strip() == kept["answer"] != ""


def test_memory_does_not_grow_with_the_rows_themselves():
    import tracemalloc

    def rows(count):
        return ({"prompt": f"question {n} " + "x" * 2000, "answer": str(n)} for n in range(count))

    def peak(count):
        from workbench.dataset.sources import Source

        source = Source("made", lambda: rows(count))
        tracemalloc.start()
        for _ in Checked(source):
            pass
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    # 16,000 rows more are 32 MB of text; what is remembered of each is two numbers.
    assert (peak(20_000) - peak(4_000)) / 16_000 < 300
