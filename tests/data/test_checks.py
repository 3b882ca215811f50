"""Checks: every row is kept, repaired by a stated rule, or listed with its reason; the counts always add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from malformed import BAD, GOOD, OTHER, chat, row

from workbench.base.errors import DataError
from workbench.data import reasons
from workbench.data.checks import Checked, check
from workbench.data.prompts import SYSTEM_PROMPT
from workbench.training.building import _for_arrow


def check_rows(rows, answer_column="answer", **options):
    """Rows that are prompts already."""
    kept_as_text = {"prompt_column": "prompt", "answer_after": None, "chat": False}
    return check(rows, answer_column=answer_column or "none", **kept_as_text, **options)


def test_every_reason_that_the_code_gives_is_in_the_file_and_has_a_remedy():
    package = Path(reasons.__file__).parent
    named = {name for file in package.glob("*.py") for name in re.findall(r"reasons\.([A-Z]\w+)", file.read_text("utf-8"))}
    assert named - {"LONGEST_CHARACTERS"} == reasons.REASONS.keys()
    assert all(reason and reason.remedy for reason in reasons.REASONS.values())
    assert str(reasons.LONGEST_CHARACTERS) in reasons.TOO_LONG


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[str(place) for place in range(len(BAD))])
def test_each_fault_has_its_reason_and_a_remedy(bad, reason):
    report = check_rows([GOOD, bad, row("another")], other=OTHER)
    [(number, found)] = report.left_out
    assert number == 1
    assert found.startswith(reason)
    assert found.remedy != ""
    assert len(report.kept) == 2


def test_a_thousand_malformed_rows_of_many_kinds_are_all_accounted_for(malformed):
    """Every kind above, and every kind of broken line, in a file: each row is found under its own reason."""
    file, expected = malformed
    assert len(set(expected.values())) >= 20
    report = check_rows(file, other=OTHER)
    assert report.read == len(expected) + 101 == report.kept_rows + len(report.left_out)
    assert len(report.kept) == 101
    found = dict(report.left_out)
    assert found.keys() == expected.keys()
    wrong = {number: (found[number], why) for number, why in expected.items() if not found[number].startswith(why)}
    # A second row without an answer and its like never become duplicates: only rows that were kept are remembered.
    assert not wrong
    machine = report.found()
    assert machine["kept"] + machine["left_out"] == machine["read"]
    assert sum(reason["count"] for reason in machine["reasons"]) == machine["left_out"] == 1001
    assert sorted(number for reason in machine["reasons"] for number in reason["rows"]) == sorted(expected)
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
        ({"prompt": "2 + 3?\x1b]0;x\x07", "answer": "\x1b[2J5"}, "text: control characters taken out", "2 + 3?", "5"),
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
    # what is only written otherwise was not broken
    assert (report.kept_rows, report.repaired_rows) == (1, int("written as text" not in rule))
    json.dumps(report.kept).encode()


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"prompt": "caf\ufffd", "answer": "4"}, reasons.REPLACED),
    ],
)
def test_what_looks_odd_is_kept_and_said(odd, said):
    report = check_rows([odd])
    assert report.kept_rows == 1
    assert list(report.warnings) == [said]


def test_columns_of_other_types_can_be_written(home):
    from datetime import date
    from decimal import Decimal

    import numpy as np

    from workbench.data.sources import load_rows, save_rows

    odd = {"day": date(2026, 1, 2), "price": Decimal("1.5"), "raw": b"x", "point": np.array([1, 2]), "n": np.int64(3)}
    report = check_rows([{"prompt": "q", "answer": "1", "note": "a\ud800", "deep": ["\ud800"], **odd}])
    [row] = load_rows(save_rows(report.kept, "rows.jsonl"))
    assert {key: row[key] for key in odd} == {"day": "2026-01-02", "price": "1.5", "raw": None, "point": [1, 2], "n": 3}
    assert row["note"] == "a\ufffd"
    assert "column 'raw': bytes left out of the row" in report.repairs


def test_a_date_of_numpys_is_an_answer_as_text():
    import numpy as np

    [row] = check_rows([{"prompt": "When?", "answer": np.datetime64("2026-01-02", "ns")}]).kept
    assert row["answer"] == "2026-01-02 00:00:00"


def test_columns_may_hold_what_the_trainer_keeps_aside():
    rows = [{"prompt": f"q{n}", "answer": "1", "meta": meta} for n, meta in enumerate([{"a": 1}, {"b": 1}, "x", [2**70]])]
    report = check_rows(rows)
    assert [row["meta"] for row in report.kept] == [row["meta"] for row in rows]
    assert not report.warnings


@pytest.mark.parametrize(
    "question",
    [
        "Tom has 12 eggs.",
        "Is 112 > 12?",
        "Answer: 120 or 121?",
        "the answer is what?",
        "Answer: 12 or 13",
        "Answer: 12,000 or 13?",
        "Answer: 12 eggs",
    ],
)
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


def test_no_rows_at_all():
    with pytest.raises(DataError, match="no rows"):
        Checked([])


def test_rows_none_of_which_can_be_read_are_listed_all_the_same(home):
    report = Checked([1, None]).collect()
    assert (report.read, report.reasons) == (2, {reasons.NOT_AN_OBJECT: 2})
    with pytest.raises(DataError, match="none of 2 rows could be kept; 2 times: row is not an object"):
        report.require()
    (home / "a.jsonl").write_bytes('{"prompt": "é'.encode()[:-1])
    assert Checked("a.jsonl").collect().reasons == {"last line is half-written": 1}


def test_a_pass_can_be_made_again():
    checked = Checked([{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "1"}])
    assert [len(list(checked)), len(list(checked))] == [1, 1]
    assert (checked.report.read, checked.report.kept_rows) == (2, 1)


def test_the_report_reads_well():
    report = check_rows(
        [row(), row(), {"prompt": chat(("user", "q")), "answer": 5}, {"prompt": chat(("user", "b")), "answer": " x"}]
    )
    assert str(report).splitlines() == [
        "4 rows read, 3 kept (1 of them repaired), 1 left out; rows are counted from 0",  # 5 was not broken
        "left out:",
        "        1  prompt is a duplicate of an earlier row  (row 1)",
        "           e.g. {'prompt': [{'role': 'user', 'content': 'What is 1 + 1?'}], 'answer': '2'}",
        "           -> nothing: the first of them was kept",
        "changed and kept:",
        "        1  answer: number written as text  (row 2)",
        "        1  answer: surrounding white space taken off  (row 3)",
    ]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["prompt", "answer", "level", "completions"]), anything) | anything, max_size=12))
def test_any_rows_add_up_and_those_kept_can_be_written_and_trained_on(rows):
    report = check_rows([GOOD, *rows])
    assert report.read == len(rows) + 1 == report.kept_rows + len(report.left_out)
    assert json.dumps(report.kept, ensure_ascii=False).encode()
    pyarrow.Table.from_pylist(_for_arrow(report.kept)[0])  # what a trainer's dataset is made of
    for kept in report.kept:
        assert kept["answer"].strip() == kept["answer"] != ""


@pytest.mark.timing
def test_the_checks_are_linear_in_the_text():
    import time

    def seconds(size):
        hostile = ["answer " * size, "answer is " * size, "####" * size, "<answer>" * size, "12 " * size, "Ã" * size]
        rows = [{"prompt": f"{text} 12 {n}", "answer": "12"} for n, text in enumerate(hostile)]
        started = time.perf_counter()
        check_rows(rows)
        return time.perf_counter() - started

    seconds(100)
    assert min(seconds(8_000) for _ in range(3)) < 0.5


def test_a_worked_example_in_the_prompt_is_no_leak():
    assert check_rows([{"prompt": "Example. 2 + 2? Answer: 4\nNow: 4 * 1?", "answer": "4"}]).kept_rows == 1
    labels = [{"prompt": f"Is {n} prime? Answer: yes or no", "answer": ("yes", "no")[n % 2]} for n in range(10)]
    assert check_rows(labels).kept_rows == 10


def test_the_other_split_may_be_raw_and_asked_in_another_format():
    rows = [{"question": "same?", "answer": "1"}, {"question": "new?", "answer": "2"}]
    for other in ([{"question": " same?"}], [{"prompt": chat(("system", "x"), ("user", "same?"))}]):
        report = Checked(rows, system=SYSTEM_PROMPT, other=other).collect()
        assert report.left_out == [(0, reasons.CONTAMINATED)]


def test_columns_that_give_way_keep_a_free_name():
    rows = [{"query": "q", "prompt": "old", "original_prompt": "older", "rationale": "mine", "answer": "so\n#### 4"}]
    [kept] = Checked(rows, prompt_column="query").collect().kept
    assert kept == {
        "prompt": chat(("user", "q")), "answer": "4", "original_prompt": "older", "original_prompt_2": "old",
        "rationale": "mine", "rationale_2": "so\n#### 4",
    }  # fmt: skip


def test_what_was_asked_for_and_does_not_apply_is_said():
    own = [{"prompt": chat(("system", "mine"), ("user", "q")), "answer": "1"}]
    report = Checked(own, system=SYSTEM_PROMPT, examples=[("a", "b")]).collect()
    assert report.warnings == {reasons.OWN_SYSTEM: 1, reasons.NO_EXAMPLE: 1}
    with pytest.raises(DataError, match="chat = False"):
        Checked([{"prompt": "q", "answer": "1"}], system="x", chat=False)


def test_a_mark_that_only_some_answers_have_is_said():
    rows = [{"prompt": f"q{n}", "answer": "4"} for n in range(9)] + [{"prompt": "q", "answer": "so\n#### 4"}]
    report = Checked(rows).collect()
    assert report.repairs == {"answer: taken out of ####": 1}
    assert report.kept[-1]["answer"] == "4"
    assert "'so\\n#### 4' -> '4'" in str(report)
    assert Checked(rows, answer_after=None).collect().kept[-1]["answer"] == "so\n#### 4"


def test_a_frame_of_chat_prompts_read_from_parquet(home):
    import pandas

    pandas.DataFrame([{"prompt": chat(("user", "q")), "answer": "1"}]).to_parquet(home / "a.parquet")
    assert Checked(pandas.read_parquet(home / "a.parquet")).collect().kept_rows == 1


def test_a_dataset_whose_every_row_has_a_reserved_column_is_refused():
    with pytest.raises(DataError, match="a column is called 'prompts'"):
        Checked([{"prompts": "q", "prompt": "q", "answer": "1"}])
    assert Checked([{"prompt": "q", "completion": "1"}], answer_column="completion").collect().kept[0]["answer"] == "1"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows_themselves():
    import tracemalloc

    def rows(count):
        return ({"prompt": f"question {n} " + "x" * 2000, "answer": str(n)} for n in range(count))

    def peak(count):
        from workbench.data.sources import Source

        source = Source("made", lambda: rows(count))
        tracemalloc.start()
        for _ in Checked(source):
            pass
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    # 16,000 rows more are 32 MB of text; what is remembered of each is two numbers.
    assert (peak(20_000) - peak(4_000)) / 16_000 < 300


def conversation(number, last="assistant", text=None):
    said = {"role": last, "content": text or f"It is one more.\n#### {number + 1}"}
    return {"messages": [{"role": "user", "content": f"What is {number} + 1?"}, said], "meta": number}


def test_the_assistants_last_turn_becomes_the_answer():
    rows = [conversation(n) for n in range(12)] + [
        {"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "It is:\n#### 1,200"}], "meta": 12},
        conversation(13, last="user"),
        conversation(14, text="fourteen"),
    ]
    report = Checked(rows, answer_column="assistant").collect()
    assert report.kept_rows == 13
    assert report.kept[3] == {
        "prompt": [{"role": "user", "content": "What is 3 + 1?"}],
        "answer": "4",
        "rationale": "It is one more.\n#### 4",
        "meta": 3,
    }
    assert report.kept[12]["answer"] == "1200"
    assert report.left_out == [(13, reasons.NO_TURN), (14, "answer has no ####")]
    assert report.columns == {"prompt": "messages", "answer": "assistant"}
    whole = Checked(rows[:1], answer_column="assistant", answer_after=None).collect()
    assert whole.kept[0]["answer"] == "It is one more.\n#### 1"
    # The other split has the same form, or has been through the checks already.
    for other in (rows[:5], report.kept[:5]):
        assert Checked(rows[:6], answer_column="assistant", other=other).collect().kept_rows == 1


def test_where_the_answer_is_the_last_turn_the_advice_is_what_to_type():
    rows = [conversation(n) for n in range(3)]
    with pytest.raises(DataError, match="say which: --answer assistant "):
        Checked(rows)
    report = Checked(rows, answer_column="none").collect()
    [reason] = report.reasons
    assert "--answer assistant" in reason.remedy


@pytest.mark.parametrize("word", ["N/A", "none", "NULL", "Unknown", "tbd", "-"])
def test_an_answer_that_stands_for_none_is_said(word):
    words = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(["red", "blue", "green"] * 5 + [word])]
    report = check_rows(words)
    assert report.kept_rows == 16, "it may be the right answer"
    assert report.warnings == {reasons.PLACEHOLDER: 1}
    assert "fill it in" in reasons.PLACEHOLDER.remedy


def test_answers_that_are_not_written_alike_are_said():
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(["7", "49000 g", "12 g", "1,000", "3 km/h"])]
    checked = Checked(rows)
    note = (
        "3 answers are a number and a unit ('49000 g', row 1; '3 km/h', row 4), 2 bare numbers ('7', row 0): "
        "a reward that compares them calls one form wrong where the other is the answer"
    )
    assert checked.collect().notes == checked.collect().notes == [note]
    assert "of 2 units" in Checked(rows[1:3] + rows[4:]).collect().notes[0]
    for alike in (rows[1:3], rows[:1], [{"prompt": "q", "answer": "Paris"}, {"prompt": "r", "answer": "7"}]):
        assert Checked(alike).collect().notes == []


def test_reasons_of_one_size_stand_in_the_order_of_the_rows(home):
    report = check_rows([{"prompt": "", "answer": "1"}, row(), row(), {"prompt": chat(("user", "q")), "answer": ""}])
    assert list(str(report).splitlines()[2::3]) == [
        f"        1  {reasons.EMPTY}  (row 0)",
        f"        1  {reasons.DUPLICATE}  (row 2)",
        "        1  answer is empty  (row 3)",
    ]
    (home / "a.jsonl").write_text('{"prompt": "a", "answer": "1"}\nnot JSON\n')
    assert "(row 1)\n           e.g. line 2 of the file\n" in str(Checked("a.jsonl").collect())


def test_labels_that_differ_in_case_or_spaces_alone_are_one_answer():
    spelt = ["Billing", "Billing", "BILLING", " billing", "Sales", "Sales", "sales", "Sales"]
    rows = [{"prompt": f"ticket {n}", "answer": label} for n, label in enumerate(spelt * 2)]
    report = check(rows)
    assert {row["answer"] for row in report.kept} == {"Billing", "Sales"}
    assert report.repairs["answer: its label written as in most rows"] == 6
    assert "answer: one of 2: 'Billing' (8), 'Sales' (8)" in report.notes
    assert {row["answer"] for row in check(rows, answer_after=None).kept} == {"Billing", "BILLING", "billing", "Sales", "sales"}


@pytest.mark.parametrize("spelt", [["a", "A"], ["12 km", "12 Km", "3"], ["Ada\nBen", "Ada Ben"]])
def test_what_is_no_label_keeps_its_spelling(spelt):
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(spelt * (1 if len(spelt) > 2 else 8))]
    assert {row["answer"] for row in check(rows).kept} == set(spelt)


@pytest.mark.parametrize(
    "row",
    [
        {"images": ["a/1.jpg"], "prompt": "<image>How many?"},
        {"image": {"bytes": b"\x89PNG..", "path": None}, "prompt": "How many?"},
        {"picture": "1.png", "prompt": "How many?\n<image>"},
        {
            "prompt": [
                {"role": "user", "content": [{"type": "image_url", "image_url": "x"}, {"type": "text", "text": "How many?"}]}
            ]
        },
    ],
)
def test_pictures_are_called_pictures(row):
    report = check([{**row, "answer": "1"}, {"prompt": "What is <image> in HTML?", "answer": "a tag"}])
    assert report.left_out == [(0, reasons.PICTURE)]


def test_duplicates_that_differ_beside_the_prompt_do_not_contradict():
    rows = [
        {"prompt": "Name the capital.", "input": land, "answer": city}
        for land, city in [("Peru", "Lima"), ("Cuba", "Havana")] * 2
    ]
    report = check(rows)
    [(why, count), *others] = report.reasons.most_common()
    assert (count, others) == (2, [(reasons.DUPLICATE, 1)])
    assert "differs in 'input'" in why
    assert "{prompt}\\n\\n{input}" in why.remedy
    assert check(rows, prompt_column="{prompt}\n\n{input}").kept_rows == 2


TABLE = [{"question": f"Line one\nof {n}?", "answer": n if n else None, "level": n, "tags": ["a b", "c"]} for n in range(5)]


def test_one_table_gives_the_same_rows_from_every_kind_of_file(home):
    import pandas

    frame = pandas.DataFrame(TABLE)
    frame.to_csv("t.csv")
    frame.to_parquet("t.parquet")
    frame.to_json("t.json", orient="records")
    found = {kind: check(kind) for kind in ("t.csv", "t.parquet", "t.json")} | {"frame": check(frame)}
    answers = {kind: [(row["answer"], row["prompt"], row["tags"]) for row in report.kept] for kind, report in found.items()}
    assert [answer for answer, *_ in answers["t.csv"]] == ["1", "2", "3", "4"]
    assert all(answers[kind] == answers["t.csv"] for kind in answers)
    notes = "\n".join(found["t.csv"].notes)
    assert "'unnamed_0' has no name" in notes
    assert "column 'answer': whole numbers" in notes
    assert "numbers stay text, as CSV has them: 'unnamed_0', 'level'" in notes, "of these alone CSV gives others"
    assert "no value (NaN, NaT, NA) read as None: 'answer' (1)" in found["frame"].notes
