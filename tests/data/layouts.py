# ruff: noqa: E501  (rows read best on one line)
"""Small data sets in layouts that public GRPO repositories use, each rebuilt with rows of our own.

`python -m tests.data.layouts FOLDER` writes, for each, its rows, a task file and a recipe for the embedded policy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]
CITIES = [("France", "Paris"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Norway", "Oslo"), ("Cuba", "Havana"),
          ("Egypt", "Cairo"), ("Chile", "Santiago"), ("Italy", "Rome"), ("Nepal", "Kathmandu")]  # fmt: skip
PAIRS = [(3, 4), (8, 5), (12, 7), (20, 6), (15, 15), (9, 2), (31, 11), (40, 1), (6, 6), (17, 5)]


class Layout(NamedTuple):
    """A data set: its rows, how they are written, how `check` is asked, and what it must find."""

    rows: Callable[[], Rows]
    suffix: str
    options: dict[str, str]
    kept: int
    asks: str  # stands in the first prompt
    answer: str | None  # the first
    said: str = ""  # stands in the report


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def gsm8k() -> Rows:
    return [{"question": f"Mia has {a} shells and finds {b}. How many are they?", "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
            for a, b in PAIRS]  # fmt: skip


def open_r1() -> Rows:
    return [
        {
            "problem": f"Compute ${a} \\cdot {b}$.",
            "solution": f"The product of the two factors is found by adding.\nSo it is $\\boxed{{{a * b}}}$.",
            "source": "made",
            "messages": [*user("x"), {"role": "assistant", "content": "y"}],
        }
        for a, b in PAIRS
    ]


def numina() -> Rows:
    return [
        {"source": "olympiads", "problem": f"Find ${a} - {b}$.", "solution": f"It is \\boxed{{{a - b}}}.", "answer": str(a - b)}
        for a, b in PAIRS
    ]


def verl() -> Rows:
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": user(f"What is {a} + {b}? Write the answer after ####."),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": "train", "index": n},
        }
        for n, (a, b) in enumerate(PAIRS)
    ]


def verl_list() -> Rows:
    return [{**row, "reward_model": {"style": "rule", "ground_truth": [row["reward_model"]["ground_truth"]]}} for row in verl()]


def swift() -> Rows:
    return [
        {"messages": user(f"Which is more, {a} or {b}?"), "solution": f"<answer> {max(a, b)} </answer>"}
        for a, b in PAIRS
        if a != b
    ]


def big_math() -> Rows:
    return [
        {
            "problem": f"Double {a}.",
            "answer": str(2 * a),
            "source": "gsm8k",
            "domain": ["Arithmetic"],
            "llama8b_solve_rate": a / 40,
        }
        for a, _ in PAIRS
    ]


def countdown() -> Rows:
    return [{"target": a + b - 1, "nums": [a, b, 1]} for a, b in PAIRS]


def choices() -> Rows:
    rows = []
    for n, (land, city) in enumerate(CITIES):
        options = [CITIES[(n + k) % 10][1] for k in (3, 0, 6, 8)]
        rows.append({"question": f"What is the capital of {land}?", "options": options, "answer": "B", "subject": "cities"})
        rows[-1]["answer"] = "ABCD"[(n + 1) % 4]
        options[1], options[(n + 1) % 4] = options[(n + 1) % 4], city
    return rows


def arc() -> Rows:
    return [{"id": f"q{n}", "question": f"Which of these is the capital of {land}?", "answerKey": "AB"[n % 2],
             "choices": {"text": [city, "Berlin"] if n % 2 == 0 else ["Berlin", city], "label": ["A", "B"]}}
            for n, (land, city) in enumerate(CITIES)]  # fmt: skip


def medical() -> Rows:
    return [{"question": f"Capital of {land}?\nA. Berlin\nB. {city}\nC. Bonn", "answer": f"B. {city}" if n % 2 else "A. Berlin"}
            for n, (land, city) in enumerate(CITIES)]  # fmt: skip


def squad() -> Rows:
    return [{"id": str(n), "title": land, "context": f"{land} is a country. Its capital is {city}, on a river.", "question": "What is the capital?",
             "answers": {"text": [city], "answer_start": [10]}} for n, (land, city) in enumerate(CITIES)]  # fmt: skip


def text_to_sql() -> Rows:
    return [{"question": f"How many rows have v above {a}?", "context": f"CREATE TABLE t{n} (v INTEGER)", "answer": f"SELECT count(*) FROM t{n} WHERE v > {a}"}
            for n, (a, _) in enumerate(PAIRS)]  # fmt: skip


def code() -> Rows:
    return [{"prompt": f"Write a function add_{a} that adds {a}.", "test": f"assert add_{a}(1) == {a + 1}", "entry_point": f"add_{a}",
             "canonical_solution": f"    return x + {a}\n"} for a, _ in PAIRS]  # fmt: skip


def function_calls() -> Rows:
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    return [{"messages": user(f"How is the weather in {city}?"), "tools": json.dumps([tool]),
             "ground_truth": json.dumps({"name": "weather", "arguments": {"city": city}})} for _, city in CITIES]  # fmt: skip


def classification() -> Rows:
    return [{"text": f"Ticket {n}: {what}.", "label": label} for n, (what, label) in enumerate(
        [("charged twice", "Billing"), ("cannot log in", "Access"), ("refund please", "BILLING"), ("lost my password", "access")] * 5)]  # fmt: skip


def translation() -> Rows:
    return [{"translation": {"en": f"The capital is {city}.", "de": f"Die Hauptstadt ist {city}."}} for _, city in CITIES]


def summaries() -> Rows:
    return [{"id": n, "article": f"A fair opened in {city}. Many people came. It lasts {n + 2} days.", "highlights": f"A fair in {city}."}
            for n, (_, city) in enumerate(CITIES)]  # fmt: skip


def share_gpt() -> Rows:
    return [{"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": f"What is {a} * {b}?"},
                               {"from": "gpt", "value": str(a * b)}]} for a, b in PAIRS]  # fmt: skip


def alpaca() -> Rows:
    rows = [{"instruction": "Name the capital.", "input": land, "output": city} for land, city in CITIES]
    return [*rows, {"instruction": "How many legs has a spider?", "input": "", "output": "8"}]


def preferences() -> Rows:
    return [{"prompt": f"What is {a} + {b}?", "chosen": [*user(f"What is {a} + {b}?"), {"role": "assistant", "content": str(a + b)}],
             "rejected": [*user(f"What is {a} + {b}?"), {"role": "assistant", "content": "no"}]} for a, b in PAIRS]  # fmt: skip


def languages() -> Rows:
    asked = ["Was ist {} + {}?", "Combien font {} + {} ?", "¿Cuánto es {} + {}?", "{} + {} は?", "{} + {} 等于多少？"]
    return [{"lang": str(n % 5), "Question": asked[n % 5].format(a, b), "Answer": a + b} for n, (a, b) in enumerate(PAIRS)]


def knights() -> Rows:
    return [{"quiz": f"Ada says: Ben is a {'knight' if n % 2 else 'knave'}. Ben says nothing ({n}). Who is what?", "names": ["Ada", "Ben"],
             "solution_text": f"(1) Ada is a knight\n(2) Ben is a {'knight' if n % 2 else 'knave'}", "solution": [True, bool(n % 2)]}
            for n in range(10)]  # fmt: skip


def meta_math() -> Rows:
    return [{"query": f"Mia buys {a} pens at {b} each. What does she pay?", "type": "GSM_Rephrased",
             "response": f"She pays the price of one pen times their number.\nThat is {a} * {b}.\nThe answer is: {a * b}"} for a, b in PAIRS]  # fmt: skip


def fine_tuning() -> Rows:
    return [
        {"prompt": user(f"What is {a} + {b}?"), "completion": [{"role": "assistant", "content": str(a + b)}]} for a, b in PAIRS
    ]


def pictures() -> Rows:
    return [
        {"images": [f"pictures/{n}.png"], "messages": user("<image>How many are there?"), "solution": str(n)} for n in range(10)
    ]


def pandas_csv() -> Rows:
    return [{"": n, "question": f"What is {a} + {b}?", "answer": f"{a + b}.0" if n else ""} for n, (a, b) in enumerate(PAIRS)]


JOINS = "{question}\\n\\n{options}"
LAYOUTS = {
    "gsm8k": Layout(gsm8k, ".jsonl", {}, 10, "3 shells", "7", "####"),
    "open_r1": Layout(open_r1, ".parquet", {"prompt_column": "problem"}, 10, "3 \\cdot 4", "12", "\\boxed{}"),
    "numina": Layout(numina, ".parquet", {}, 10, "3 - 4", "-1"),
    "verl": Layout(verl, ".parquet", {"answer_column": "reward_model.ground_truth"}, 10, "3 + 4", "7"),
    "verl_list": Layout(verl_list, ".parquet", {"answer_column": "reward_model.ground_truth"}, 10, "3 + 4", "7", "list of one"),
    "swift": Layout(swift, ".jsonl", {}, 8, "3 or 4", "4", "taken out of <answer>"),
    "big_math": Layout(big_math, ".parquet", {}, 10, "Double 3", "6"),
    "countdown": Layout(countdown, ".parquet", {"prompt_column": "Reach {target} with {nums}.", "answer_column": "target"}, 10, "[3, 4, 1]", "6"),
    "choices": Layout(choices, ".jsonl", {"prompt_column": JOINS}, 10, "B) Paris", "B"),
    "arc": Layout(arc, ".parquet", {"prompt_column": "{question}\n{choices}", "answer_column": "answerKey"}, 10, "A) Paris\nB) Berlin", "A"),
    "medical": Layout(medical, ".csv", {}, 10, "B. Paris", "A", "(B)"),
    "squad": Layout(
        squad, ".parquet", {"prompt_column": "{context}\n\n{question}", "answer_column": "answers.text"}, 10, "on a river.\n\nWhat", "Paris"
    ),
    "text_to_sql": Layout(
        text_to_sql,
        ".jsonl",
        {"prompt_column": "{context}\n\n{question}"},
        10,
        "CREATE TABLE t0 (v INTEGER)\n\nHow",
        "SELECT count(*) FROM t0 WHERE v > 3",
    ),
    "code": Layout(code, ".jsonl", {"answer_column": "canonical_solution"}, 10, "add_3", "return x + 3"),
    "function_calls": Layout(function_calls, ".jsonl", {}, 10, "Paris", '{"name": "weather", "arguments": {"city": "Paris"}}'),
    "classification": Layout(classification, ".csv", {"prompt_column": "text", "answer_column": "label"}, 20, "charged", "Billing", "label"),
    "translation": Layout(translation, ".parquet", {"prompt_column": "translation.en", "answer_column": "translation.de"}, 10, "Paris", "Die Hauptstadt ist Paris."),
    "summaries": Layout(summaries, ".csv", {"prompt_column": "article", "answer_column": "highlights"}, 10, "lasts 2 days", "A fair in Paris."),
    "share_gpt": Layout(share_gpt, ".json", {"answer_column": "assistant"}, 10, "3 * 4", "12", "last turn"),
    "alpaca": Layout(alpaca, ".json", {"prompt_column": "{instruction}\\n\\n{input}"}, 11, "Name the capital.\n\nFrance", "Paris"),
    "preferences": Layout(preferences, ".parquet", {"answer_column": "chosen"}, 10, "3 + 4", "7", "what the assistant says last"),
    "languages": Layout(languages, ".tsv", {}, 10, "Was ist 3", "7"),
    "knights": Layout(knights, ".parquet", {"prompt_column": "quiz", "answer_column": "solution_text"}, 10, "Ada says", "(1) Ada is a knight\n(2) Ben is a knave"),
    "meta_math": Layout(meta_math, ".json", {"answer_column": "response"}, 10, "3 pens", "12", "answer:"),
    "fine_tuning": Layout(fine_tuning, ".jsonl", {}, 10, "3 + 4", "7", "'completion'"),
    "pictures": Layout(pictures, ".jsonl", {}, 0, "", None, "picture"),
    "pandas_csv": Layout(pandas_csv, ".csv", {}, 9, "8 + 5", "13", "without"),
}  # fmt: skip

TASK = '''"""Rows in the layout {name}: right is an answer that equals the stored one."""

from pathlib import Path

import workbench as wb

report = wb.check(Path(__file__).with_name("rows{suffix}"), {options}system="tags")
rows = report.require()
right_reward = wb.rewards.make_answer_reward("any", name="right_reward")
task = wb.Task("{name}", rows[2:], [right_reward], held_out=rows[:2], right_by="right_reward")
'''
RECIPE = """run_name: {name}
task: task.py
policy: {{name: tiny, max_seq_length: 512}}
grpo: {{max_steps: 3, num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 48, learning_rate: 1.0e-3}}
"""


def write_rows(layout: Layout, folder: Path) -> Path:
    """The rows of a layout as a file of its kind."""
    import pandas

    rows, path = layout.rows(), folder / f"rows{layout.suffix}"
    if layout.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif layout.suffix in (".csv", ".tsv"):
        pandas.DataFrame(rows).to_csv(path, index=False, sep="\t" if layout.suffix == ".tsv" else ",")
    elif layout.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_all(folder: Path) -> None:
    """Each layout in a folder: rows, task.py, recipe.yaml, and how `workbench check` is asked (check.txt)."""
    for name, layout in LAYOUTS.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        write_rows(layout, place)
        options = "".join(f"{key}={value!r}, " for key, value in layout.options.items())
        flags = " ".join(
            f"--{key.removesuffix('_column')} {json.dumps(value, ensure_ascii=False)}" for key, value in layout.options.items()
        )
        (place / "check.txt").write_text(f"workbench check rows{layout.suffix} {flags}\n", encoding="utf-8")
        if layout.kept:
            (place / "task.py").write_text(TASK.format(name=name, suffix=layout.suffix, options=options), encoding="utf-8")
            (place / "recipe.yaml").write_text(RECIPE.format(name=name), encoding="utf-8")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
