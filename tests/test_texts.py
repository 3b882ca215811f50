"""What users read, in one file: tests/texts.txt, which `pytest tests/test_texts.py --rewrite-texts` writes and a person reviews.

So a better sentence costs one look at a diff, and no other test need hold one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commanding import workbench
from malformed import BAD

import workbench as wb
from workbench.base.errors import WorkbenchError

FILE = Path(__file__).with_name("texts.txt")
SMALL = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}
COMMANDS = (
    "demo", "lab", "lesson", "explain", "doctor", "check", "probe", "trial", "plan", "train", "continue", "watch", "control",
    "notebook", "eval", "levels", "duel", "twin", "logs", "replay", "report", "export", "prove", "verify", "ask",
)  # fmt: skip


def plan_of(**grpo) -> Callable[[], object]:
    """The notes of a plan, without the table."""
    return lambda: "\n".join(wb.plan(wb.Recipe(grpo={**SMALL, **grpo})).notes)


def task_of(*functions: Callable, **fields) -> wb.Task:
    rows = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 21)]
    return wb.Task("made", rows, list(functions) or [wb.rewards.correctness_reward], **fields)


def numbers_reward(completions, **kwargs):
    return [float(any(sign.isdigit() for sign in text)) for text in completions]


def short_reward(completions, **kwargs):
    return [1.0]


def raising_reward(completions, answer, **kwargs):
    return [1.0 / len(text.split("=")[1:]) for text in completions]


def score_with(function: Callable) -> object:
    return wb.score(function, {"prompt": "6 * 7?", "answer": "42"}, ["42", "<answer>42</answer>"])


# Where a text tells what was refused, the error's is meant: value, rule and remedy.
SHOWN: dict[str, Callable[[], object]] = {
    "plan": lambda: wb.plan(wb.Recipe(grpo=SMALL)),
    "plan: a high beta, a low learning rate": plan_of(beta=0.2, learning_rate=1e-7),
    "plan: sequences": plan_of(importance_sampling_level="sequence", epsilon=0.3),
    "plan: cispo": plan_of(loss_type="cispo", epsilon_high=0.5),
    "recipe: an unknown name": lambda: wb.plan(wb.Recipe(grpo={"num_genertions": 4})),
    "recipe: a group of one": plan_of(num_generations=1),
    "recipe: groups that do not fit": plan_of(num_generations=3),
    "recipe: a word for a number": plan_of(learning_rate="fast"),
    "recipe: an old name": plan_of(kl_coef=0.1),
    "recipe: no such file": lambda: wb.plan("recipes/none.yaml"),
    "recipe: an unknown algorithm": lambda: wb.plan(wb.Recipe(algorithm="grop", grpo=SMALL)),
    "policy: no such folder": lambda: wb.plan(wb.Recipe(policy={"name": "./models/none"}, grpo=SMALL)),
    "task: no functions": lambda: wb.Task("empty", [{"prompt": "?", "answer": "1"}], []),
    "task: weights in a dict": lambda: task_of(reward_weights={"correctness_reward": 1.0}),
    "rows": lambda: wb.check([row for row, _ in BAD]),
    "rewards": lambda: wb.score(
        wb.rewards.correctness_reward, {"prompt": "6 * 7?", "answer": "42"}, ["<answer>42</answer>", "42"]
    ),
    "rewards: too few scores": lambda: score_with(short_reward),
    "rewards: one that raises": lambda: score_with(raising_reward),
    "audit: a reward that any number earns": lambda: wb.audit_rewards(task_of(numbers_reward)),
    "audit: the format is unknown to the prompt": lambda: wb.audit_rewards(
        task_of(wb.rewards.strict_format_reward, wb.rewards.correctness_reward)
    ),
    "run: none of that name": lambda: wb.open_run("runs/none"),
    **{f"workbench {name} --help": lambda name=name: workbench(name, "--help").stdout for name in COMMANDS},
    "workbench": lambda: workbench("--help").stdout,
}


def text_of(show: Callable[[], object]) -> str:
    """As it is read, without what differs between machines: versions, times, folders."""
    try:
        text = str(show())
    except WorkbenchError as error:
        text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    text = text.replace(str(Path.cwd()), "HOME")
    usage, *rest = text.split("\n\n")
    if usage.startswith("Usage:"):  # by the name that the tests' own process has, and wrapped after it
        usage = "Usage: workbench" + " ".join(usage.split()).partition("workbench")[2]
    text = "\n\n".join([usage, *rest])
    text = re.sub(r"\b\d+\.\d+ s\b", "N s", re.sub(r"0x[0-9a-f]+", "0x", text))
    text = re.sub(r"(/[\w.-]+)+/(?=\w+\.py)", "FOLDER/", text)
    text = re.sub(r"(?m)^(optim|bf16|fp16) .*\n", "", text)  # as the machine's libraries have it
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def sections() -> dict[str, str]:
    parts = re.split(r"(?m)^=== (.*) ===$", FILE.read_text(encoding="utf-8"))[1:]
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2])}


@pytest.fixture(autouse=True)
def wide(monkeypatch, home):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_read_is_what_was_reviewed(name, request):
    text = text_of(SHOWN[name])
    if request.config.getoption("rewrite_texts"):
        known = sections() if FILE.exists() else {}
        texts = {other: text if other == name else known.get(other, "") for other in SHOWN}
        FILE.write_text("".join(f"=== {other} ===\n{body}\n\n" for other, body in texts.items()), encoding="utf-8")
    assert sections()[name] == text


def test_the_file_holds_nothing_else():
    assert list(sections()) == list(SHOWN)
