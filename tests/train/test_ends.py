"""Where completions end: at every token at which TRL ends them, in training, in samples, and on record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from families import FAMILIES, make_family
from trl import GRPOConfig, GRPOTrainer

from workbench import inspection
from workbench.data.template import template_card, turn_end
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.metrics import CLIPPED
from workbench.run.rollouts import query
from workbench.task import Task
from workbench.training.attach import attach
from workbench.training.features import warm_start
from workbench.training.plan.loading import eos_ids, load_tokenizer
from workbench.training.plan.prepare import plan
from workbench.training.policy import load_policy
from workbench.training.sampling import sample, scored_groups
from workbench.training.trainer import train

PROMPTS = [[{"role": "user", "content": f"What is {number} + 3?"}] for number in range(8)]
LIMIT = 12


def ended_reward(ends):
    """Pays a completion that ends as TRL counts ends: by one of these tokens."""

    def ended(completion_ids, **_):
        return [float(bool({*ids[-1:]} & ends)) for ids in completion_ids]

    return ended


def five_reward(completions, **_):
    return [float(each[0]["content"] == "5") for each in completions]


def task(*rewards) -> Task:
    rows = [{"prompt": prompt, "answer": "5"} for prompt in PROMPTS]
    return Task("ends", rows, list(rewards), held_out=rows[:4])


def recipe(folder, backend, steps=3, **more) -> Recipe:
    grpo = {"max_steps": steps, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": LIMIT}
    policy = {"name": str(folder), "backend": backend, "load_in_4bit": False, "max_seq_length": 512}
    return Recipe.of({"run_name": "r", "grpo": grpo, "policy": policy, **more})


def trls(folder, **settings):
    """TRL's own trainer of a folder's model, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sizes = {"num_generations": 4, "per_device_train_batch_size": 16, "use_cpu": True, "bf16": False, "report_to": "none"}
    args = GRPOConfig(str(folder.parent / "out"), **sizes, **settings)
    rows = Dataset.from_list(list(task(five_reward).rows))
    return GRPOTrainer(model, five_reward, args=args, train_dataset=rows, processing_class=tokenizer), tokenizer


@pytest.mark.parametrize("name", FAMILIES)
def test_eos_ids_are_trls(name, home):
    folder = make_family(name, home / name)
    policy = load_policy(str(folder), backend="transformers", load_in_4bit=False)
    tokenizer = load_tokenizer(folder)
    named = tokenizer.convert_tokens_to_ids(FAMILIES[name].ends.split())
    assert eos_ids(policy) == trls(folder)[0].eos_token_ids == load_tokenizer(folder).eos_ids == named
    card = template_card(tokenizer, PROMPTS[0])
    assert card.ends_turns
    assert card.eos_tokens == dict(zip(named, FAMILIES[name].ends.split(), strict=True))
    # Sampled, they end where TRL's list ends them in transformers' own loop, drawn with the same numbers.
    found = [own for group in sample(policy, PROMPTS, num_generations=4, max_completion_length=LIMIT, seed=3) for own in group]
    inputs = tokenizer([tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in PROMPTS],
                       add_special_tokens=False, return_tensors="pt", padding=True, padding_side="left",
                       return_token_type_ids=False)  # fmt: skip
    torch.manual_seed(3)
    with torch.no_grad(), policy.generating() as model:
        theirs = model.generate(**inputs, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=LIMIT, num_return_sequences=4,
                                eos_token_id=named, pad_token_id=tokenizer.pad_token_id)  # fmt: skip
    for own, ids in zip(found, theirs[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
        first = next((place for place, token in enumerate(ids) if token in named), None)
        assert own.ids == (ids if first is None else ids[: first + 1])
        assert own.finished == (first is not None)
    assert {own.ids[-1] for own in found if own.finished} == {*named}
    assert not all(own.finished for own in found)


def test_an_answer_earns_in_evaluation_what_it_earns_in_training(home):
    # As converted folders have it: turns end by <|im_end|>, which the model's generation_config alone names.
    folder = make_family("qwen3", home / "coder", eos="<|endoftext|>", ends="<|im_end|>")
    policy = load_policy(recipe(folder, "transformers"))
    tokenizer = policy.tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert eos_ids(policy) == trls(folder)[0].eos_token_ids == [tokenizer.eos_token_id, end]
    assert turn_end(tokenizer, PROMPTS[0]) == end
    [five] = tokenizer("5", add_special_tokens=False)["input_ids"]
    head = policy.model.get_output_embeddings().weight
    with torch.no_grad():  # often "5", and often an end
        head[[five, end]] = 1.6 * head[end]
    run = train(recipe(folder, "transformers", steps=2), policy=policy, task=task(five_reward))
    on_record = query(run.rollouts, 'select completion, "score.five_reward" as score, finish_reason as ended from rollouts')
    assert on_record["score"].tolist() == [float(text == "5") for text in on_record["completion"]]
    assert on_record["score"].sum() > 0
    assert set(on_record["ended"][on_record["score"] > 0]) == {"stop"}
    assert sorted(run.manifest()["eos_ids"]) == sorted(eos_ids(policy))
    [found] = scored_groups(policy, evaluated := task(five_reward), evaluated.rows[:1], RewardSuite(evaluated, 64), 64)
    paid = [own for own in found if own["total"]]
    assert paid == [own for own in found if own["completion"] == "5"]
    assert all(own["finished"] and own["length_tokens"] == 2 for own in paid)
    assert len(paid) > 1
    # A view of its tokens ends likewise, by the likeliest of them: the record has the text alone.
    step, group, generation = query(
        run.rollouts, "select step, \"group\", generation from rollouts where completion = '5' order by all"
    ).iloc[0]
    view = inspection.token_view(run, step, group, generation, policy=policy)
    assert view.tokens == ["5", "<|im_end|>"]
    assert "which one ended this is not on record" in view.note


def test_a_reference_ends_as_the_template_ends_a_turn(home):
    folder = make_family("qwen3", home / "coder", eos="<|endoftext|>", ends="<|im_end|>")
    asked = recipe(folder, "transformers", warm_start={"samples": 4, "source": "reference"})
    policy, written = load_policy(asked), replace(task(five_reward), ideal=lambda row: "5")
    [stage] = plan(asked, written).stages
    found, _ = warm_start.collect(stage, policy, asked.warm_start, lambda: False)
    assert [policy.tokenizer.decode(own.completion.ids) for own in found] == ["5<|im_end|>"] * 4


def test_what_a_trainer_of_ones_own_ends_with_is_what_its_record_knows(home):
    trainer, tokenizer = trls(make_family("gemma3", home / "gemma3"), max_steps=2, max_completion_length=LIMIT)
    trainer.eos_token_ids = tokenizer.convert_tokens_to_ids(["<end_of_turn>"])  # nothing else ends them
    run = attach(trainer)
    trainer.train()
    assert run.manifest()["eos_ids"] == trainer.eos_token_ids
    found = query(run.rollouts, "select step, finish_reason = 'length' as cut from rollouts")
    for row in run.metrics():
        assert found[found["step"] == row["step"]]["cut"].mean() == pytest.approx(row[CLIPPED])
    assert 0 < found["cut"].sum() < len(found) == 32


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["auto", "trl"])
@pytest.mark.parametrize("backend", ["transformers", "unsloth"])
@pytest.mark.parametrize("name", FAMILIES)
def test_finish_reasons_are_those_that_trl_counts(name, backend, generation, home):
    folder = make_family(name, home / name)
    asked = recipe(folder, backend, generation=generation)
    policy = load_policy(asked)
    ends = {*eos_ids(policy), policy.tokenizer.pad_token_id}  # TRL counts padding as an end, too
    run = train(asked, policy=policy, task=task(ended_reward(ends)))
    assert sorted(run.manifest()["eos_ids"]) == sorted(eos_ids(policy))
    found = query(run.rollouts, 'select step, finish_reason, length_tokens, "score.ended" as ended from rollouts order by step')
    assert (found["finish_reason"] == "stop").tolist() == (found["ended"] == 1.0).tolist()
    assert len(found) == 48
    assert 0 < (found["finish_reason"] == "stop").sum() < 48
    for row in run.metrics():
        cut = found[found["step"] == row["step"]]["finish_reason"] == "length"
        assert cut.mean() == pytest.approx(row[CLIPPED])
    assert (found[found["finish_reason"] == "length"]["length_tokens"] == LIMIT).all()
    # An evaluation ends where training does.
    for own in (own for group in sample(policy, PROMPTS, num_generations=4, max_completion_length=LIMIT) for own in group):
        assert own.finished == (own.ids[-1] in eos_ids(policy))
        assert not {*own.ids[:-1]} & {*eos_ids(policy)}
        assert own.finished or len(own.ids) == LIMIT
