"""The workbench's loop beside transformers' own: the same tokens, the same distribution, and what it leaves alone."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from scipy import stats
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)  # fmt: skip

from workbench.base.errors import RecipeError
from workbench.instruments.cpu import generation as hook
from workbench.instruments.cpu.generation import Generation, adapters, decoding, expected, generation_line
from workbench.instruments.cpu.generation.decoding import ALL, NotNumbers, Optimizations, Unsupported, decoder
from workbench.memory.shapes import from_config
from workbench.recipe import Recipe
from workbench.run.rollouts import query
from workbench.tiny.task import task as arithmetic
from workbench.training import drawing
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.sampling import sample
from workbench.training.trainer import train

GRPO = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24, "learning_rate": 1e-3}


def with_an_adapter_that_does_something(model):
    """A new adapter adds nothing, because its B is 0."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.02)
    return model


@pytest.fixture(scope="module", params=["unsloth, 4 bits", "unsloth, 16 bits", "transformers, 4 bits"])
def policy(request):
    backend, bits = request.param.split(", ")
    policy = load_policy("tiny", backend=backend, load_in_4bit=bits == "4 bits")
    with_an_adapter_that_does_something(policy.model).train()
    return policy


@pytest.fixture(scope="module")
def plain():
    policy = load_policy("tiny", backend="transformers", load_in_4bit=False)
    with_an_adapter_that_does_something(policy.model).train()
    return policy


def prompts(policy, count: int, copies: int = 4) -> dict[str, torch.Tensor]:
    """Sums of different lengths, so that the shorter ones are padded; `copies` of each, side by side."""
    texts = [f"What is {7 ** (n % 9)} + {n}?" for n in range(count)]
    chats = [[{"role": "user", "content": text}] for text in texts for _ in range(copies)]
    text = policy.tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return dict(policy.tokenizer(text, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False,
                                 return_token_type_ids=False))  # fmt: skip


def both(model, inputs, parts=ALL, **settings) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(transformers' tokens, ours, whether both drew the same number of random numbers) from the same seed."""
    ends = []
    for more in ({}, {"custom_generate": decoder(parts)}):
        torch.manual_seed(5)
        with torch.no_grad():
            found = model.generate(**inputs, **{"do_sample": True, "top_k": 0, "max_new_tokens": 40, **settings}, **more)
        ends.append((found, torch.rand(1)))
    return ends[0][0], ends[1][0], bool(ends[0][1] == ends[1][1])


SETTINGS = [
    {},
    {"do_sample": False},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05},
    {"do_sample": False, "repetition_penalty": 1.3},
    {"max_new_tokens": 1},
    {"max_new_tokens": 3},
    {"eos_token_id": [2, 298, 587]},
    {"eos_token_id": None},
    {"pad_token_id": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_sampling_setting_gives_the_tokens_of_transformers(policy, settings):
    theirs, ours, drew = both(policy.model, prompts(policy, 6), **settings)
    assert torch.equal(ours, theirs)
    assert drew


@pytest.mark.parametrize("left_out", Optimizations._fields)
def test_every_part_can_be_left_out(plain, left_out):
    theirs, ours, drew = both(plain.model, prompts(plain, 4), Optimizations(**{left_out: False}))
    assert torch.equal(ours, theirs)
    assert drew


def test_looking_seldom_as_on_a_gpu_gives_the_same_tokens(plain, monkeypatch):
    monkeypatch.setattr(decoding, "_LOOK_EVERY", {})
    theirs, ours, _ = both(plain.model, prompts(plain, 6))
    assert torch.equal(ours, theirs)


def test_where_pytorch_draws_otherwise_its_own_numbers_are_taken(plain, monkeypatch):
    monkeypatch.setattr(decoding, "_exponential_by_hand", lambda *_: False)
    theirs, ours, drew = both(plain.model, prompts(plain, 6), max_new_tokens=60)
    assert torch.equal(ours, theirs)
    assert drew


def test_exponential_numbers_by_hand_are_those_of_pytorch():
    """Two million: the check before the first draw looks at 131,072. They are what multinomial divides by."""
    kind = torch.float32, torch.device("cpu")
    if not decoding._exponential_by_hand(*kind):
        pytest.skip("this PyTorch draws them otherwise")
    torch.manual_seed(3)
    theirs, after = torch.empty(2_000_000).exponential_(), torch.rand(1)
    torch.manual_seed(3)
    uniform = torch.empty(2_000_000, dtype=torch.float64).uniform_()
    assert torch.equal(decoding._exponential(uniform).float(), theirs)
    assert torch.equal(torch.rand(1), after)


_THEIRS = torch.Tensor.exponential_


@pytest.mark.parametrize("draw", [
    lambda own, generator: torch.Tensor.uniform_(own, generator=generator).neg_().log1p_().neg_(),  # 32 bits
    lambda own, generator: torch.Tensor.uniform_(own.double(), generator=generator).neg_().log1p_().mul_(-1.1).to(own.dtype),
    lambda own, generator: (_THEIRS(own, generator=generator), torch.rand(1, generator=generator))[0],
], ids=["of fewer bits", "other numbers", "one draw more"])  # fmt: skip
def test_another_way_to_draw_is_noticed(draw, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", draw)
    assert not decoding._exponential_by_hand.__wrapped__(torch.float32, torch.device("cpu"))


def test_completions_of_one_prompt_that_are_asked_for_by_number(plain):
    theirs, ours, drew = both(plain.model, prompts(plain, 4, copies=1), num_return_sequences=4)
    assert torch.equal(ours, theirs)
    assert drew


def test_finished_rows_leave_and_the_prompt_is_read_once(plain, monkeypatch):
    """24 rows of 6 prompts: the first forward has 6 rows, the last fewer than 24."""
    rows = []
    forward = plain.model.get_base_model().model.forward
    monkeypatch.setattr(
        plain.model.get_base_model().model,
        "forward",
        lambda *args, **kwargs: rows.append(tuple(kwargs["input_ids"].shape)) or forward(*args, **kwargs),
    )
    inputs = prompts(plain, 6)
    plain.model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=60, custom_generate=decoder())
    assert rows[0] == (6, inputs["input_ids"].shape[1])
    assert rows[1] == (24, 1)
    assert rows[-1][0] < 24
    assert [each[0] for each in rows[1:]] == sorted((each[0] for each in rows[1:]), reverse=True)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(num_key_value_heads=2)),
        (Qwen2ForCausalLM, Qwen2Config(num_key_value_heads=1, tie_word_embeddings=True)),
    ],
    ids=["llama", "qwen2"],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_architectures_in_32_bits(kind, config, attention):
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    config.update({**small, "vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2})
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation=attention)
    model = with_an_adapter_that_does_something(get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")))
    ids = torch.randint(3, 97, (3, 9)).repeat_interleave(3, dim=0)
    mask = torch.ones_like(ids)
    ids[:3, :4], mask[:3, :4] = 0, 0
    theirs, ours, drew = both(model, {"input_ids": ids, "attention_mask": mask}, max_new_tokens=60)
    assert torch.equal(ours, theirs)
    assert drew


def test_prompts_of_equal_tokens_and_different_masks_are_two():
    model = tiny_model()
    ids = torch.randint(3, 97, (1, 6)).repeat(4, 1)
    mask = torch.ones_like(ids)
    mask[2:, :3] = 0
    theirs, ours, _ = both(model, {"input_ids": ids, "attention_mask": mask}, do_sample=False)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours[0], ours[2])


# What the trainer of TRL does with it


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """TRL's trainer on a policy of its own, taking the likeliest token."""
    policy = load_policy("tiny", load_in_4bit=False)
    config_class, trainer_class = trainer_classes()
    config = config_class(
        output_dir=str(tmp_path_factory.mktemp("trainer")), num_generations=2, per_device_train_batch_size=8,
        max_completion_length=64, report_to="none", use_cpu=True, bf16=False, generation_kwargs={"do_sample": False},
    )  # fmt: skip
    return trainer_class(
        model=with_an_adapter_that_does_something(policy.model), processing_class=policy.tokenizer, args=config,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        train_dataset=Dataset.from_list([{"prompt": "1"}] * 8),
    )  # fmt: skip


@pytest.mark.slow
def test_greedy_completions_equal_trls_token_for_token_over_500_prompts(trainer):
    texts = [f"What is {n} + {7 ** (n % 9)}?" for n in range(500)]
    equal = completions = 0
    different = set()
    for start in range(0, 500, 125):
        chats = [[{"role": "user", "content": text}] for text in texts[start : start + 125] for _ in range(2)]
        ids, _, _ = trainer._tokenize_prompts(chats)
        theirs, _ = trainer._generate_single_turn(ids, None, {}, 2)
        with Generation(trainer.model) as generation:
            ours, _ = trainer._generate_single_turn(ids, None, {}, 2)
        assert generation.found() == {"by": "workbench", "calls": {"workbench": 1, "trl": 0}}
        equal += sum(a == b for a, b in zip(ours, theirs, strict=True))
        completions += len(theirs)
        different |= {tuple(ids) for ids in theirs}
    assert (equal, completions) == (1000, 1000)
    assert len(different) > 100, "otherwise equality says little"


DRAWS, ALPHA, SHIFT, POWER = 7000, 1e-3, 0.04, 0.99


@pytest.mark.slow
def test_sampled_completions_are_equal_in_distribution(plain):
    """Two samples of 7,000 with different seeds, by chi-square over the first two tokens of one prompt's completions.

    At a level of 0.001 it finds a difference of 4 % of the probability mass, moved between the two largest bins, with a
    probability of 99 % or more: computed below, and tried on temperature 1.15.
    """

    def sample(seed, temperature=1.0, ours=True):
        torch.manual_seed(seed)
        more = {"custom_generate": decoder()} if ours else {}
        with torch.no_grad():
            found = plain.model.generate(**inputs, do_sample=True, top_k=0, temperature=temperature, max_new_tokens=2, **more)
        return [tuple(row) for row in found[:, inputs["input_ids"].shape[1] :].tolist()]

    def p_value(first, second):
        pairs = {}
        for index, drawn in enumerate((first, second)):
            for each in drawn:
                pairs.setdefault(each, [0, 0])[index] += 1
        common = [pair for pair in pairs.values() if sum(pair) >= 40]
        rest = [sum(column) for column in zip(*(pair for pair in pairs.values() if sum(pair) < 40), strict=True)]
        table = [*common, rest] if rest else common
        return stats.chi2_contingency(table).pvalue, table

    inputs = prompts(plain, 1, copies=DRAWS)
    theirs = sample(1, ours=False)
    p, table = p_value(theirs, sample(2))
    assert p > ALPHA
    # Between the largest bins a difference is hardest to see.
    shares = sorted((sum(pair) / (2 * DRAWS) for pair in table), reverse=True)
    away = DRAWS / 2 * SHIFT**2 * (1 / shares[0] + 1 / shares[1])
    critical = stats.chi2.ppf(1 - ALPHA, len(table) - 1)
    power = stats.ncx2.sf(critical, len(table) - 1, away)
    assert len(table) >= 5
    assert power >= POWER, (power, shares)
    assert p_value(theirs, sample(2, temperature=1.15))[0] < ALPHA


# What it leaves to transformers


def tiny_model(kind=LlamaForCausalLM, config_class=LlamaConfig, **changes):
    torch.manual_seed(0)
    return kind(config_class(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                             pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes)).train()  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 2, "do_sample": False}, "beam_search"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGram"),
        ({"min_new_tokens": 2}, "MinLength"),
        ({"bad_words_ids": [[5]]}, "BadWords"),
        ({"max_time": 100.0}, "MaxTime"),
        ({"use_cache": False}, "cache"),
        ({"cache_implementation": "static"}, "cache"),
        ({"prefill_chunk_size": 4}, "prefill_chunk_size"),
        ({"return_dict_in_generate": True}, "return_dict"),
        ({"output_scores": True, "return_dict_in_generate": True}, "return_dict"),
        ({"streamer": None}, "streamer"),
    ],
    ids=str,
)
def test_a_setting_that_is_not_covered_goes_to_transformers_and_says_why(asked, said):
    model, reasons = tiny_model(), []
    ids = torch.randint(3, 97, (4, 6))
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": True, "max_new_tokens": 8, **asked}
    torch.manual_seed(3)
    theirs = model.generate(**asked)
    with Generation(model, changed=reasons.append) as generation:
        torch.manual_seed(3)
        ours = model.generate(**asked)
        torch.manual_seed(3)
        model.generate(**asked)
    assert torch.equal(getattr(ours, "sequences", ours), getattr(theirs, "sequences", theirs))
    [reason] = reasons
    assert said in reason
    assert generation.found() == {"by": "trl", "calls": {"workbench": 0, "trl": 2}, "why": reason}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: get_peft_model(tiny_model(), LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj"])), "dropout"),
        (lambda: tiny_model(attention_dropout=0.1), "attention_dropout"),
        (
            lambda: tiny_model(MistralForCausalLM, MistralConfig, sliding_window=32, num_key_value_heads=4),
            "SlidingWindow",
        ),
    ],
    ids=["lora_dropout", "attention_dropout", "sliding window"],
)
def test_a_model_that_is_not_covered_goes_to_transformers(made, said):
    model, reasons = made(), []
    model.train()
    ids = torch.randint(3, 97, (4, 6))
    torch.manual_seed(3)
    theirs = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=8)
    with Generation(model, changed=reasons.append):
        torch.manual_seed(3)
        ours = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=8)
    assert torch.equal(ours, theirs)
    assert said in reasons[0]


def test_with_dropout_in_evaluation_the_loop_is_used():
    model = get_peft_model(tiny_model(), LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj"])).eval()
    ids = torch.randint(3, 97, (4, 6))
    with Generation(model) as generation:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    assert generation.found()["by"] == "workbench"


def test_memory_that_runs_out_is_no_reason_to_try_a_path_that_needs_more(plain, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(decoding._Rows, "_forward", full)
    with Generation(plain.model) as generation, pytest.raises(torch.OutOfMemoryError):
        plain.model.generate(**prompts(plain, 2), max_new_tokens=4)
    assert generation.calls == {"workbench": 0, "trl": 0}


def test_a_loop_that_fails_is_left_out_and_costs_no_draw(plain, monkeypatch):
    def broken(*_):
        torch.rand(3)
        raise RuntimeError("of this version")

    monkeypatch.setattr(decoding._Rows, "_forward", broken)
    inputs, reasons = prompts(plain, 2), []
    torch.manual_seed(4)
    theirs = plain.model.generate(**inputs, do_sample=True, max_new_tokens=8)
    with Generation(plain.model, changed=reasons.append):
        torch.manual_seed(4)
        ours = plain.model.generate(**inputs, do_sample=True, max_new_tokens=8)
        plain.model.generate(**inputs, max_new_tokens=2)
    assert torch.equal(ours, theirs)
    assert len(reasons) == 1
    assert "left out from here on: RuntimeError: of this version" in reasons[0]
    assert "generate" not in vars(plain.model)


def test_probabilities_that_are_no_numbers_end_the_run_as_in_torch(plain, monkeypatch):
    monkeypatch.setattr(plain.model.get_base_model().lm_head, "forward", lambda x: torch.full((*x.shape[:-1], 640), math.nan))
    with pytest.raises(NotNumbers, match="not a number"), Generation(plain.model):
        plain.model.generate(**prompts(plain, 2), do_sample=True, max_new_tokens=8)


# Adapters


def test_layers_out_of_the_ordinary_keep_their_own_forward():
    def replaced(**lora):
        model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **lora))
        with adapters.lean_adapters(model) as (count, _):
            pass
        assert not [module for module in model.modules() if "forward" in vars(module)]
        return count

    assert replaced() == 4
    assert replaced(use_dora=True) == 0
    assert replaced(lora_bias=True) == 0
    assert replaced(lora_dropout=0.1) == 0  # in training mode
    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    model.base_model.model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *_: None)
    with adapters.lean_adapters(model) as counts:
        assert counts == (1, 0)
    with model.disable_adapter(), adapters.lean_adapters(model) as counts:
        assert counts == (1, 0)
    model.merge_adapter()
    with adapters.lean_adapters(model) as counts:
        assert counts == (0, 0)


def test_packed_weights_stay_packed_where_there_is_no_room(monkeypatch, tiny_policy):
    tiny_policy.model.train()
    with adapters.lean_adapters(tiny_policy.model) as counts:
        assert counts == (21, 21)
    monkeypatch.setattr(adapters, "_free_bytes", lambda: 1_000_000)
    with adapters.lean_adapters(tiny_policy.model) as counts:
        assert counts == (21, 0)
    theirs, ours, _ = both(tiny_policy.model, prompts(tiny_policy, 4))
    assert torch.equal(ours, theirs)


# In a run


def settings(**changes):
    return {"num_generations": 8, **changes}


def test_unsloths_decoding_on_a_gpu_is_never_given_one_row_alone(plain, monkeypatch):
    one, two = ("What is 3 + 4?", "What is 12 + 30?")
    as_ever = [sample(plain, prompts, temperature=0)[0][0].ids for prompts in ([one], [one, two])]
    monkeypatch.setattr(drawing, "_by_unsloths_kernels", lambda policy: True)
    rows, generate = [], plain.model.generate
    monkeypatch.setattr(plain.model, "generate", lambda **inputs: rows.append(len(inputs["input_ids"])) or generate(**inputs))
    found = [sample(plain, prompts, temperature=0) for prompts in ([one], [one, two])]
    assert rows == [2, 2]
    assert [len(groups) for groups in found] == [1, 2]
    assert [groups[0][0].ids for groups in found] == as_ever
    assert len(sample(plain, [one], num_generations=3)[0]) == 3
    assert rows[2:] == [1]  # one row of three completions is three rows of decoding


def test_what_can_be_told_before_a_model_is_loaded():
    assert expected(Recipe(), settings(), cuda=False) is None
    assert expected(Recipe(), settings(), cuda=True) == hook.UNSLOTH_ON_A_GPU
    assert expected(Recipe.of({"policy": {"backend": "transformers"}}), settings(), cuda=True) is None
    assert expected(Recipe.of({"generation": "trl"}), settings(), cuda=False) == hook.SWITCHED_OFF
    assert "lora_dropout = 0.1" in expected(Recipe.of({"lora": {"lora_dropout": 0.1}}), settings(), cuda=False)
    assert expected(Recipe(), settings(use_vllm=True), cuda=True) == hook.VLLM
    assert expected(Recipe(), settings(use_transformers_continuous_batching=True), cuda=False) == hook.CONTINUOUS
    assert generation_line(hook.VLLM, 8) == "vLLM generates"
    assert "first step compiles" in generation_line(hook.UNSLOTH_ON_A_GPU, 8)
    assert "compiles" not in generation_line(hook.SWITCHED_OFF, 8)
    assert Generation(None).found() == {"by": None, "calls": {"workbench": 0, "trl": 0}}
    assert "read once for its 8 completions" in generation_line(None, 8)
    assert "no_repeat_ngram_size" in expected(Recipe(), settings(generation_kwargs={"no_repeat_ngram_size": 3}), cuda=False)
    assert expected(Recipe(), settings(generation_kwargs={"do_sample": False}), cuda=False) is None
    assert "'static'" in expected(Recipe(), settings(cache_implementation="static"), cuda=False)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    shapes = {kind: from_config({"model_type": kind, **sizes}) for kind in ("llama", "gemma3_text", "qwen3_moe")}
    plain = Recipe.of({"policy": {"backend": "transformers"}})
    assert expected(plain, settings(), False, shapes["llama"]) is expected(plain, settings(), True, shapes["llama"]) is None
    assert expected(plain, settings(), False, shapes["gemma3_text"]) == "a cache of DynamicSlidingWindowLayer"
    assert expected(plain, settings(), False, shapes["qwen3_moe"]) is None
    assert "mixture of experts on a GPU" in expected(plain, settings(), True, shapes["qwen3_moe"])
    assert generation_line("why", 8) == "TRL's own path generates: why"
    with pytest.raises(RecipeError, match="generation"):
        Recipe.of({"generation": "fast"})


def test_a_run_is_the_same_to_the_last_digit_with_and_without(home, capsys):
    """Completions, rewards, loss and gradient norm of every step, in 4 bits through Unsloth."""
    found = {}
    for way in ("auto", "trl"):
        recipe = Recipe.of({"run_name": way, "generation": way, "grpo": {**GRPO, "max_steps": 3, "beta": 0.01}})
        run = train(recipe, policy=load_policy("tiny"), task=arithmetic(16, 4))
        rows = query(run.rollouts)[["step", "completion", "total", "advantage"]].values.tolist()
        keys = ("loss", "grad_norm", "reward", "kl", "entropy", "completions/mean_length")
        found[way] = rows, [[row[key] for key in keys] for row in run.metrics()]
        said = capsys.readouterr().out
        assert run.result()["generation"] == (
            {"by": "workbench", "calls": {"workbench": 3, "trl": 0}}
            if way == "auto"
            else {"by": "trl", "calls": {"workbench": 0, "trl": 3}, "why": hook.SWITCHED_OFF}
        )
        assert run.events()[0]["generation"] == ("the workbench's loop" if way == "auto" else hook.SWITCHED_OFF)
        assert ("read once" if way == "auto" else hook.SWITCHED_OFF) in said
    assert found["auto"] == found["trl"]


def test_what_turns_up_while_it_trains_is_an_event(home, capsys, monkeypatch):
    def sliding(model):
        raise Unsupported("a cache of DynamicSlidingWindowLayer")

    monkeypatch.setattr(decoding, "check_model", sliding)
    grpo = {**GRPO, "max_steps": 2}
    run = train(Recipe.of({"run_name": "t", "grpo": grpo}), policy=load_policy("tiny", load_in_4bit=False),
                task=arithmetic(16, 4))  # fmt: skip
    [event] = [event for event in run.events() if event["event"] == "generation"]
    assert event["by"] == "trl"
    assert "SlidingWindow" in event["why"]
    assert event["step"] == 1
    assert "from step 1 on TRL's own path generates: a cache of" in capsys.readouterr().out
    assert run.events()[0]["generation"] == "the workbench's loop"
    assert run.result()["generation"]["why"] == event["why"]


@pytest.fixture
def said(caplog):
    """What transformers warns of while it generates."""
    logger = logging.getLogger("transformers.generation.utils")
    logger.addHandler(caplog.handler)
    yield lambda: {record.getMessage()[:40] for record in caplog.records}
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize("way", [None, "for a test"])
def test_a_length_in_the_models_own_config_draws_no_warning_and_is_put_back(plain, said, monkeypatch, way):
    monkeypatch.setattr(plain.model.generation_config, "max_length", 512)  # Unsloth puts the context's length there
    with Generation(plain.model, way):
        plain.model.generate(**prompts(plain, 2), max_new_tokens=3)
    sample(plain, ["What is 1 + 2?"], max_completion_length=3)
    assert said() == set()
    assert plain.model.generation_config.max_length == 512
    plain.model.generate(**prompts(plain, 2), max_new_tokens=3)
    assert said() == {"Both `max_new_tokens` (=3) and `max_leng"}  # not ours


def test_arguments_that_unsloth_adds_draw_no_warning(plain, said, monkeypatch):
    generate = plain.model.generate
    # As unsloth_fast_generate does.
    added = {"cache_implementation": "dynamic", "pad_token_id": plain.tokenizer.pad_token_id}
    monkeypatch.setattr(plain.model, "generate", lambda **kwargs: generate(**kwargs, **added))
    config = GenerationConfig(max_new_tokens=3)
    with Generation(plain.model, "for a test"):
        plain.model.generate(**prompts(plain, 2), generation_config=config)
    assert said() == set()


def test_not_covered_is_raised_by_name(plain):
    with pytest.raises(Unsupported, match="beam_search"):
        plain.model.generate(**prompts(plain, 2), num_beams=2, max_new_tokens=2, custom_generate=decoder())
