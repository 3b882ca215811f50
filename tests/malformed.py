"""Rows that cannot be used, one of each kind with the beginning of its reason, and a file of a thousand of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from workbench.data import reasons


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
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "2"}, reasons.PICTURE),
    ({"prompt": [{"role": "user", "content": [{"type": "audio"}]}], "answer": "2"}, "a message holds something other"),
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
    ({"prompt": chat(("user", "q13\nThe answer is: **$1,200**.")), "answer": "1200"}, reasons.LEAK),
    ({"prompt": chat(("user", "q14 \\boxed{12}")), "answer": "12"}, reasons.LEAK),
    ({"prompt": chat(("user", "q15 Answer: PARIS")), "answer": "Paris"}, reasons.LEAK),
    ({"prompt": chat(("user", "q16")), "answer": 10**400}, "answer is a number of more than 60 digits"),
    ({"prompt": chat(("user", "q17")), "answer": object()}, "answer is a object, not text"),
    (
        {"prompt": [{"role": "user", "content": "q19", "big": 2**70}], "answer": "1"},
        "column 'prompt[].big' holds a whole number beyond",
    ),
    (
        {"prompt": [{"role": "user", "content": "q20", "weight": "x"}], "answer": "1"},
        "column 'prompt[].weight' is text, and a",
    ),
    ({"prompt": chat(("user", "y" * 100_001)), "answer": "1"}, "prompt has more than 100000 characters"),
    ({"prompt": "plain text", "answer": "1"}, reasons.MIXED),
    (row(), reasons.DUPLICATE),
    (row(answer="3"), reasons.CONTRADICTS),
    (row("held  out"), reasons.CONTAMINATED),
]
GOOD = {**row(level=1, deep={"a": [1]}), "prompt": [{"role": "user", "content": "What is 1 + 1?", "weight": 1}]}
OTHER = [row("held out")]


def write(file: Path) -> dict[int, str]:
    """Write one good row, 1,000 bad ones, 100 good ones and a torn line; returns the reasons by row number."""
    draw = random.Random(0)
    kinds = [(json.dumps(bad), reason) for bad, reason in BAD if not isinstance(bad, dict) or _in_json(bad)]
    kinds += [("{torn", "line is not JSON"), ("\xff", "line is not UTF-8"), ("[" * 50_000, "line is nested too deeply")]
    lines, expected = [json.dumps(GOOD)], {}
    for number in range(1, 1001):
        text, reason = kinds[number % len(kinds)] if number < 100 else draw.choice(kinds)
        lines.append(text)
        expected[number] = reason
    lines += [json.dumps(row(f"good {number}")) for number in range(100)]
    data = b"\n".join(line.encode("latin-1" if line == "\xff" else "utf-8") for line in lines)
    file.write_bytes(data + b'\n{"prompt": "half')
    return {**expected, 1101: "last line is half-written"}


def _in_json(bad: dict) -> bool:
    try:
        json.dumps(bad)
    except TypeError:
        return False
    # Only the other split makes it bad.
    return bad != row("held  out")
