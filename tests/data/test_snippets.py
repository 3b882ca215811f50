"""Dataset snippets from courses and blogs, pasted as they stand: they work, or fail with an error that names the right word.

Each is a file that `open_source` reads; a line at its end gives it rows, as its reader would.
"""

from __future__ import annotations

import pytest

from workbench.base.errors import DataError
from workbench.data.answer_column import extract_answer
from workbench.data.checks import Checked

PREPARE = '''
from datasets import load_dataset, Dataset

SYSTEM_PROMPT = """
Respond in the following format:
<reasoning>
[Your step-by-step thinking]
</reasoning>
<answer>
[Final answer]
</answer>
"""

def prepare_dataset(raw_data):
    return raw_data.map(lambda x: {
        'prompt': [
            {'role': 'system', 'content': SYSTEM_PROMPT},
            {'role': 'user', 'content': x['question']}
        ],
        'answer': extract_answer(x['raw_answer'])
    })
'''

KNOWLEDGE_BASE = """
def load_custom_knowledge_base(csv_path):
    import pandas as pd
    df = pd.read_csv(csv_path)

    dataset = Dataset.from_pandas(df).map(lambda x: {
        'prompt': [
            {'role': 'system', 'content': CUSTOM_SYSTEM_PROMPT},
            {'role': 'user', 'content': x['question']}
        ],
        'answer': x['expert_answer']
    })
    return dataset
"""

FORMAT_FOR_GRPO = """
def format_for_grpo(sample):
    return {
        "query": format_prompt(sample["question"]),
        "ground_truth": sample["answer"]
    }

train_dataset = train_dataset.map(format_for_grpo)
"""

FROM_DICT = """
from datasets import Dataset
data = {
    "query": [
        "Question: What is 2+2? Answer:",
        "Question: What is 3+3? Answer:",
    ],
    "ground_truth": [4, 6]
}
train_dataset = Dataset.from_dict(data)
"""

FORMAT_MATH = '''
def format_math_problem(sample):
    prompt = f"""Question: {sample['question']}

Please solve this step by step and provide your final answer after ####.

Answer:"""

    answer = extract_number(sample['answer'])

    return {
        "query": prompt,
        "ground_truth": answer
    }

train_dataset = train_dataset.map(format_math_problem)
'''

HELPER = "from workbench.data.answer_column import extract_answer\n"
ROWS = """
from datasets import Dataset
raw = Dataset.from_list([{'question': f'q{n}?', 'answer': f'so\\n#### {n}'} for n in range(9)])
"""


def read(home, text):
    file = home / "snippet.py"
    file.write_text(text)
    return Checked(file).collect()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Its helper is not in it, and the column that it reads is not GSM8K's.
        (f"{HELPER}{ROWS}{PREPARE}\ndataset = prepare_dataset(raw)",
         "no column 'raw_answer'.*the rows have question, answer.*mean 'answer'"),
        (f"{ROWS.replace('answer', 'raw_answer')}{PREPARE}\ndataset = prepare_dataset(raw)",
         "'extract_answer' is not defined.*from workbench.data.answer_column import extract_answer"),
        (f"{KNOWLEDGE_BASE}\ndataset = load_custom_knowledge_base('kb.csv')",
         "'Dataset' is not defined.*from datasets import Dataset"),
        (f"from datasets import Dataset\n{KNOWLEDGE_BASE}\ndataset = load_custom_knowledge_base('kb.csv')",
         "'CUSTOM_SYSTEM_PROMPT' is not defined.*define it"),
        (f"{ROWS}train_dataset = raw\n{FORMAT_FOR_GRPO}", "'format_prompt' is not defined.*define it"),
        (f"{ROWS}train_dataset = raw\n{FORMAT_MATH}", "'extract_number' is not defined.*import extract_answer as extract_number"),
        ("dataset = load_dataset('gsm8k', 'main')", "'load_dataset' is not defined.*from datasets import load_dataset"),
        ("from datasets import load_dataset\ndataset = load_dataset('no-such/your_dataset', split='train')",
         "your_dataset.*the hub cannot be reached"),
    ],
)  # fmt: skip
def test_what_does_not_work_names_the_right_word(home, monkeypatch, text, said):
    monkeypatch.chdir(home)
    (home / "kb.csv").write_text("question,expert_answer\nWho?,Me\n")
    with pytest.raises(DataError, match=f"(?s){said}") as caught:
        read(home, text)
    assert "snippet.py" in str(caught.value)
    assert "remedy:" in str(caught.value)


def test_with_the_helper_that_the_error_names_it_works(home):
    report = read(home, f"{HELPER}{ROWS.replace('answer', 'raw_answer')}{PREPARE}\ndataset = prepare_dataset(raw)")
    assert report.kept[3]["answer"] == "3"
    assert report.kept[3]["prompt"][-1] == {"role": "user", "content": "q3?"}


def test_the_knowledge_base_works_with_its_imports(home, monkeypatch):
    monkeypatch.chdir(home)
    (home / "kb.csv").write_text("question,expert_answer\nWho?,Me\nWhere?,Here\n")
    text = f"from datasets import Dataset\nCUSTOM_SYSTEM_PROMPT = 'You answer.'\n{KNOWLEDGE_BASE}"
    report = read(home, f"{text}\ndataset = load_custom_knowledge_base('kb.csv')")
    assert [row["answer"] for row in report.kept] == ["Me", "Here"]
    assert report.kept[0]["prompt"][0] == {"role": "system", "content": "You answer."}


def test_query_and_ground_truth_are_taken_and_said(home):
    report = read(home, FROM_DICT)
    assert [row["answer"] for row in report.kept] == ["4", "6"]
    assert [note.split(" (")[0] for note in report.notes] == [
        "prompt: taken from the column 'query'",
        "answer: taken from the column 'ground_truth'",
    ]


def test_a_whole_rationale_as_ground_truth_is_parsed(home):
    text = f"{ROWS}train_dataset = raw\nformat_prompt = 'Solve: {{}}'.format\n{FORMAT_FOR_GRPO}"
    with pytest.raises(DataError, match="'question' and 'query' could both be the prompt"):
        # `map` keeps the old columns, so there are two that could be meant.
        read(home, text)
    report = Checked(home / "snippet.py", prompt_column="query", answer_column="ground_truth").collect()
    assert report.kept[3]["answer"] == "3"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so\n#### 18", "18"),
        ("#### 1,008\n", "1008"),
        ("a #### b\n#### c", "c"),
        ("18", None),
        ("####", None),
        (None, None),
    ],
)
def test_extract_answer(text, found):
    assert extract_answer(text) == found
