"""Reward models score as TRL scores with them, and everything that is a function already is left alone."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from workbench.base.errors import TaskError
from workbench.rewards.library import max_score_of
from workbench.rewards.models import as_function
from workbench.rewards.shaping import style_reward
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.tiny import MODEL_DIR

QUESTION = [{"role": "user", "content": "What is 15 + 27?"}]
TEXTS = ["<answer>\n42\n</answer>", "", "I think that it is 42, but it may be 41.", "42"]
CHAT = {
    "prompts": [QUESTION] * len(TEXTS),
    "completions": [[{"role": "assistant", "content": text}] for text in TEXTS],
}
PLAIN = {"prompts": ["What is 15 + 27?"] * len(TEXTS), "completions": TEXTS}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """Writes a classifier of a few thousand weights, drawn at random, with `outputs` outputs; returns its folder."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    @functools.cache
    def write(outputs: int, name: str = "judge"):
        tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
        config = LlamaConfig(vocab_size=len(tokenizer), **sizes)
        folder = tmp_path_factory.mktemp("models") / name
        if outputs:
            config.num_labels = outputs
            LlamaForSequenceClassification(config).save_pretrained(folder)
        else:
            LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return write


@pytest.fixture(scope="module")
def loaded(model_folder):
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(model_folder(1), num_labels=1)


@pytest.fixture(scope="module")
def trl_scores(model_folder, tmp_path_factory):
    """What TRL's own trainer makes of a call with the same reward model."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=len(TEXTS),
        num_generations=len(TEXTS),
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=str(MODEL_DIR),
        reward_funcs=model_folder(1),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": QUESTION}] * 4),
    )

    def score(call):
        rows = [{"prompt": prompt} for prompt in call["prompts"]]
        ids = [[1]] * len(rows)
        return trainer._calculate_rewards(rows, call["prompts"], call["completions"], ids)[:, 0].tolist()

    score.name = trainer.reward_func_names[0]
    return score


@pytest.mark.parametrize("call", [CHAT, PLAIN], ids=["chat", "plain"])
def test_a_folder_scores_and_is_named_as_in_trl(call, model_folder, trl_scores):
    func = as_function(model_folder(1))
    assert func.__name__ == trl_scores.name == "judge"
    assert func(**call, answer=["42"] * len(TEXTS)) == pytest.approx(trl_scores(call), abs=1e-6)
    assert len(set(func(**call))) == len(TEXTS)


def test_a_loaded_model_scores_as_its_folder(model_folder, loaded):
    func = as_function(loaded)
    assert func.__name__ == "judge"
    assert func(**CHAT) == pytest.approx(as_function(model_folder(1))(**CHAT))
    assert func(prompts=[], completions=[]) == []


def test_a_tokenizer_without_padding_is_given_its_end_token(loaded):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.pad_token = None
    expected = as_function(loaded)(**PLAIN)
    try:
        assert as_function(loaded, tokenizer)(**PLAIN) == pytest.approx(expected)
        assert loaded.config.pad_token_id == tokenizer.eos_token_id
    finally:
        as_function(loaded)(**PLAIN)


def test_it_runs_through_the_suite_like_any_function(model_folder):
    rows = [{"prompt": QUESTION, "answer": "42"}]
    judge = as_function(model_folder(1), name="kindness_reward")
    suite = RewardSuite(Task("t", rows=rows, reward_funcs=(judge, style_reward)), 2)
    scores = suite.score(rows * len(TEXTS), TEXTS)
    assert scores[:, 0].tolist() == pytest.approx(judge(**CHAT))
    assert suite.names == ["kindness_reward", "style_reward"]
    assert suite.hashes["kindness_reward"] == RewardSuite(suite.task, 2).hashes["kindness_reward"]


def test_it_says_that_it_stays_in_the_process_and_states_no_maximum(loaded):
    func = as_function(loaded)
    assert func.runs_in_process
    assert max_score_of(func) is None


@pytest.mark.parametrize("outputs", [0, 3], ids=["a language model", "three outputs"])
def test_a_model_that_would_score_at_random_is_refused(outputs, model_folder):
    with pytest.raises(TaskError, match="score.weight"):
        as_function(model_folder(outputs, "other"))(**PLAIN)


def test_a_loaded_model_with_several_outputs_is_refused(model_folder):
    from transformers import AutoModelForSequenceClassification

    with pytest.raises(TaskError, match="3 outputs"):
        as_function(AutoModelForSequenceClassification.from_pretrained(model_folder(3, "other")))


def test_a_model_without_a_home_needs_a_tokenizer(loaded):
    from transformers import AutoTokenizer, LlamaForSequenceClassification

    homeless = LlamaForSequenceClassification(loaded.config.__class__(**{**loaded.config.to_dict(), "_name_or_path": ""}))
    homeless.config._name_or_path = ""
    with pytest.raises(TaskError, match="tokenizer"):
        as_function(homeless)
    func = as_function(homeless, AutoTokenizer.from_pretrained(MODEL_DIR))
    assert func.__name__ == "LlamaForSequenceClassification"
    assert len(func(**PLAIN)) == len(TEXTS)


def test_functions_pass_straight_through():
    class Instance:
        def __call__(self, completions, **kwargs):
            return [0.0] * len(completions)

    for thing in (style_reward, functools.partial(style_reward), Instance(), lambda completions, **kwargs: []):
        assert as_function(thing) is thing


def test_what_is_no_reward_function_is_refused():
    with pytest.raises(TaskError, match=r"list \[1.0\]"):
        as_function([1.0])


def test_asking_does_not_import_torch():
    code = (
        "import sys; from workbench.rewards.models import as_function; as_function(print); as_function('some/model');"
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
