"""Prompt lengths: counted through the template, covered by limits, filtered, and fitted into the context."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest

import workbench
import workbench as wb
from workbench.audit.examination import audit_rewards
from workbench.base.errors import DataError, RecipeError
from workbench.commands.checking import check_source
from workbench.data.prompts import THINK_PROMPT, to_messages
from workbench.data.rendering import (
    PromptLengths,
    prompt_lengths_tokens,
    prompt_text,
    stream_lengths,
    template_notes,
)
from workbench.data.sources import save_rows
from workbench.data.template import template_card
from workbench.exporting.merging import write_merged
from workbench.inspection.evaluation import measure_policy
from workbench.recipe import Recipe
from workbench.rewards.library import think_answer_format_reward
from workbench.run.control_file import send
from workbench.task import Task
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.plan.loading import load_tokenizer
from workbench.training.plan.prepare import prepare, settled
from workbench.training.policy import load_policy
from workbench.training.profiling import profile_difficulty
from workbench.training.sampling import prompt_lengths
from workbench.training.trainer import train


def chat(text):
    return {"prompt": [{"role": "user", "content": text}]}


def test_lengths_are_those_of_the_rendered_text_however_they_are_batched():
    tokenizer = load_tokenizer()
    rows = [chat("What is 1 + 1?" + " and" * (number % 7)) for number in range(2300)]
    one_by_one = [
        len(tokenizer(prompt_text(row["prompt"], tokenizer), add_special_tokens=False)["input_ids"]) for row in rows[:20]
    ]
    told = []
    lengths = prompt_lengths_tokens(rows, tokenizer, progress=told.append)
    assert list(lengths[:20]) == one_by_one
    assert len(lengths) == 2300
    assert told == [1000, 2000, 2300]
    assert [row for row, _ in stream_lengths(iter(rows), tokenizer)] == rows


def test_a_plain_prompt_gets_the_tokens_that_the_tokenizer_adds():
    tokenizer = load_tokenizer()
    [length] = prompt_lengths_tokens([{"prompt": "1 + 1 ="}], tokenizer)
    assert length == len(tokenizer("1 + 1 =")["input_ids"])


def test_no_rows_no_lengths():
    assert len(prompt_lengths_tokens([], load_tokenizer())) == 0


def test_covering_lengths_by_hand():
    assert PromptLengths([], list(range(1, 101))).covering == {0.95: 95, 0.99: 99, 1.0: 100}
    assert PromptLengths([], [7]).covering == {0.95: 7, 0.99: 7, 1.0: 7}
    assert PromptLengths([], []).covering == {}


def test_keep_returns_both_sides():
    a, b, c = chat("a"), chat("b"), chat("c")
    for lengths, limit in (([5, 6, 7], 6), ([5, 6, 7], np.percentile([5, 6, 7], 50)), (np.array([5, 6, 7]), 6)):
        assert PromptLengths([a, b, c], lengths).keep(limit) == ([a, b], [c])


def test_a_limit_that_no_prompt_is_within_is_an_error():
    with pytest.raises(DataError, match=r"(?s)all 2 prompts are longer, the shortest has 5.*7 keeps all"):
        PromptLengths([chat("a"), chat("b")], [5, 7]).keep(4)
    with pytest.raises(DataError) as caught:
        PromptLengths([chat("a"), chat("b")], [40, 48]).check_budget(96, 100)
    assert "max_prompt_length" not in str(caught.value), "a limit of 4 tokens would help nobody"


def test_measured_lengths_filter_and_check_themselves():
    rows = [chat("What is 1 + 1?"), chat("What is 1 + 1 + 1 + 1?"), chat("Why" * 40)]
    for policy in ("tiny", load_tokenizer()):
        lengths = prompt_lengths(rows, policy)
        assert lengths.keep() == (rows, [])
        assert lengths.longest == lengths.covering[1.0] == max(lengths.lengths)
    limit = sorted(lengths.lengths)[1]
    lengths = prompt_lengths(rows, "tiny", max_tokens=limit)
    assert lengths.keep() == (rows[:2], rows[2:])
    assert lengths.longest == limit
    assert lengths.check_budget(96, 256) == f"{limit} + 96 = {limit + 96} <= 256 tokens: fits"
    assert lengths.record()["policy"] == "tiny"
    with pytest.raises(DataError, match=f"at least {limit + 250}"):
        lengths.check_budget(250, 256)


@pytest.mark.parametrize(("longest", "fits"), [(159, True), (160, True), (161, False)])
def test_budget_at_its_limit(longest, fits):
    lengths = PromptLengths([chat("a")], [longest])
    if fits:
        lengths.check_budget(96, 256)
    else:
        with pytest.raises(DataError, match=r"257 tokens\n.*max_seq_length = 256\n.*at least 257"):
            lengths.check_budget(96, 256)


# One renderer: a recipe's chat_template_kwargs reach whatever reads a prompt.

QUIET = {"enable_thinking": False}
GRPO = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, "max_steps": 2}
OPENING = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """The embedded policy with a template that, as Qwen3's, closes an empty block of thinking when it is told not to think."""
    folder = tmp_path_factory.mktemp("policies") / "thinker"
    shutil.copytree(MODEL_DIR, folder)
    template = (folder / "chat_template.jinja").read_text()
    turn = "'<|assistant|>' }}"
    assert template.count(turn) == 1
    quiet = "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    (folder / "chat_template.jinja").write_text(template.replace(turn, turn + quiet))
    return folder


def quiet_recipe(thinker, kwargs=QUIET, **parts) -> Recipe:
    policy = {"name": str(thinker), "backend": "transformers", "load_in_4bit": False}
    grpo = {**GRPO, **({"chat_template_kwargs": kwargs} if kwargs else {})}
    return Recipe.of({"run_name": "quiet", "policy": policy, "grpo": grpo, **parts})


@pytest.fixture
def reads(monkeypatch):
    """{"trained": prompts whose ids TRL's trainer made; "sampled": prompts that were sampled or generated from otherwise}."""
    import peft
    import trl

    found = {"trained": [], "sampled": []}
    tokenize, generate = trl.GRPOTrainer._tokenize_prompts, peft.PeftModelForCausalLM.generate

    def tokenized(self, prompts):
        ids = tokenize(self, prompts)
        found["trained"] += [self.processing_class.decode(each) for each in ids[0]]
        return ids

    def generated(self, *args, **kwargs):
        if "max_new_tokens" in kwargs:  # TRL gives a generation_config
            texts = load_tokenizer().batch_decode(kwargs["input_ids"])
            found["sampled"] += [text.replace("<pad>", "") for text in texts]
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(trl.GRPOTrainer, "_tokenize_prompts", tokenized)
    monkeypatch.setattr(peft.PeftModelForCausalLM, "generate", generated)
    return found


class Asks:
    """Asks for a sample after the first step; notes what prompts are rendered with while a step runs."""

    def __init__(self, policy):
        self.policy, self.carried = policy, []

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        self.carried.append(getattr(self.policy.tokenizer, "chat_template_kwargs", "none"))
        if step == 1:
            send(self.run, "sample", by="test")

    def end(self, message):
        pass


@pytest.mark.slow
def test_whatever_reads_a_prompt_reads_the_trainers(home, thinker, reads):
    task, recipe = arithmetic(2, 2), quiet_recipe(thinker)
    policy = load_policy(thinker, backend="transformers", load_in_4bit=False)
    run = train(recipe, policy=policy, task=task, watchers=[Asks(policy)])
    trained = set(reads["trained"])
    assert len(trained) == 2
    assert all(text.endswith(f"<|assistant|>{OPENING}") for text in trained), "TRL's own text"
    ids = [len(load_tokenizer()(text, add_special_tokens=False)["input_ids"]) for text in trained]

    held_out = {prompt_text(row["prompt"], load_tokenizer()) + OPENING for row in task.held_out}
    assert set(reads["sampled"]) == held_out, "a sample while it trains"
    assert {prompt_text(row["prompt"], policy.tokenizer) for row in task.rows} == trained
    assert run.manifest()["prompts"]["longest_tokens"] == max(ids)
    assert wb.plan(recipe, task=task).longest_tokens == max(ids)
    assert template_card(policy.tokenizer, task.rows[0]["prompt"]).prefilled == "think"

    reads["sampled"].clear()
    measure_policy(policy, task, task.rows, samples=1, max_completion_length=4)
    assert set(reads["sampled"]) == trained
    reads["sampled"].clear()
    profile = profile_difficulty(policy, task.rows, "d.jsonl", task=task, num_generations=2, max_completion_length=4)
    assert set(reads["sampled"]) == trained
    assert profile.settings["chat_template_kwargs"] == QUIET

    merged = write_merged(thinker, run.adapter, home / "merged", chat_template_kwargs=QUIET)  # its own template says so
    assert {prompt_text(row["prompt"], load_tokenizer(merged)) for row in task.rows} == trained
    plain = train(quiet_recipe(thinker, None), policy=policy, task=task)
    assert plain.manifest()["template"] != run.manifest()["template"]


def test_a_policy_loaded_for_a_recipe_and_a_tokenizer_alone_carry_them(home, thinker):
    task, recipe = arithmetic(4, 2), quiet_recipe(thinker)
    made = prepare(recipe, task)
    loaded = load_policy(made)
    tokenizer = load_tokenizer(thinker, QUIET)
    prompt = task.rows[0]["prompt"]
    assert prompt_text(prompt, loaded.tokenizer) == prompt_text(prompt, tokenizer)
    assert prompt_text(prompt, tokenizer).endswith(OPENING)
    assert settled(made, loaded).notes == made.notes
    loaded.tokenizer.chat_template_kwargs = {}
    [note] = settled(made, loaded).notes[len(made.notes) :]
    assert note == "chat_template_kwargs = {'enable_thinking': False}, as the recipe says; the policy was loaded with {}"
    save_rows(task.rows, "rows.jsonl")
    plain, quiet = (
        check_source("rows.jsonl", policy=str(thinker), chat_template_kwargs=kwargs).lengths["longest_tokens"]
        for kwargs in (None, '{"enable_thinking": false}')
    )
    assert quiet == plain + len(tokenizer(OPENING, add_special_tokens=False)["input_ids"])
    asked = to_messages("What is 1 + 1?", THINK_PROMPT)
    thinks = Task("thinks", [{"prompt": asked, "answer": "2"}], [think_answer_format_reward])
    for kwargs in ({}, QUIET):
        found = str(audit_rewards(thinks, tokenizer=load_tokenizer(str(thinker), kwargs)))
        assert ("the template writes <think> itself" in found) == bool(kwargs)


def test_each_stage_has_its_own(home, thinker):
    stages = [{"name": "a", "steps": 1}, {"name": "b", "steps": 1, "grpo": {"chat_template_kwargs": {}}}]
    policy = load_policy(thinker, backend="transformers", load_in_4bit=False)
    asks = Asks(policy)
    train(quiet_recipe(thinker, stages=stages), policy=policy, task=arithmetic(4, 2), watchers=[asks])
    assert asks.carried == [QUIET, {}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no thinking", "grpo.chat_template_kwargs = 'no thinking'.*takes arguments by name.*enable_thinking"),
        ({"tokenize": False}, "TRL passes 'tokenize' to the template itself.*leave it out"),
        ({"messages": []}, "TRL passes 'messages'"),
        ({"x(": 1}, "takes arguments by name"),
        ({1: 1}, "takes arguments by name"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_is_loaded(thinker, value, said):
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        prepare(quiet_recipe(thinker, value), arithmetic(4, 2))


def test_arguments_that_reach_no_prompt_are_said():
    rows = [{**chat("What is 1 + 1?"), "chat_template_kwargs": QUIET}]
    tokenizer = load_tokenizer("tiny", QUIET)
    assert template_notes(rows, tokenizer) == [
        "chat_template_kwargs: 'enable_thinking' changes nothing: the chat template does not read it",
        "GRPOTrainer does not read the column 'chat_template_kwargs': set grpo.chat_template_kwargs",
    ]
    tokenizer.chat_template += "{# enable_thinking_more #}"
    assert len(template_notes(rows, tokenizer)) == 2, "a longer name is another"
    assert prompt_text("1 + 1 =", tokenizer) == "1 + 1 ="
    assert "these prompts are plain text" in template_notes([{"prompt": "1 + 1 ="}], tokenizer)[0]
    assert template_notes([chat("What is 1 + 1?")], load_tokenizer()) == []


def test_nobody_else_renders_a_prompt():
    package = Path(workbench.__file__).parent
    calls = [
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "apply_chat_template"
    ]
    # A reward model reads with a template of its own.
    others = {"rewards/models.py"}
    assert [file for file in calls if file not in others] == ["data/rendering.py"]
