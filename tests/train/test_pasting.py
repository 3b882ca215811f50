"""Pasted scripts: read and never run, translated line by line; what is not read is left out, and training goes on."""

from __future__ import annotations

import re
import sys

import pytest

from workbench.base.errors import RecipeError
from workbench.recipe import SEVEN_PROJECTIONS, PolicyPart, Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training.plan import settings as settings_of
from workbench.training.plan.prepare import plan as wb_plan
from workbench.training.plan.script import read_script
from workbench.training.plan.settings.device import Machine
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.trainer import train

CPU = Machine(cuda=False, bf16=False, vllm=False)
PROJECTIONS = '["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]'

# Configurations as they are passed around, keyword by keyword.
SMALL = """GRPOConfig(output_dir="outputs/grpo-model", learning_rate=5e-6, adam_beta1=0.9, adam_beta2=0.99,
    weight_decay=0.1, warmup_ratio=0.1, lr_scheduler_type='cosine', per_device_train_batch_size=1,
    gradient_accumulation_steps=4, num_generations=8, max_prompt_length=256, max_completion_length=512,
    num_train_epochs=1, max_steps=None, bf16=True, optim="adamw_8bit", max_grad_norm=0.1, logging_steps=1, save_steps=100,
    report_to="wandb")"""
LARGE = """GRPOConfig(output_dir="outputs/grpo-model", learning_rate=1e-5, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, num_generations=16, max_prompt_length=512, max_completion_length=1024,
    num_train_epochs=1, bf16=True, use_vllm=True, logging_steps=10)"""
MINIMAL = """GRPOConfig(output_dir="output", num_train_epochs=3, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, logging_steps=10)"""
COURSE = """GRPOConfig(output_dir="output", num_train_epochs=3, num_generation=4, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, learning_rate=1e-5, logging_steps=10, use_vllm=True)"""
BASIC = """GRPOConfig(output_dir="./grpo-output", num_generations=4, temperature=0.7, kl_coef=0.05, max_new_tokens=256,
    max_prompt_length=512, num_train_epochs=3, per_device_train_batch_size=1, gradient_accumulation_steps=8,
    learning_rate=1e-6, gradient_checkpointing=True, bf16=True)"""
MATHS = """GRPOConfig(output_dir="./grpo-math-output", num_generations=6, temperature=0.8, kl_coef=0.05, max_new_tokens=300,
    learning_rate=5e-7, num_train_epochs=3, per_device_train_batch_size=1, gradient_accumulation_steps=16,
    gradient_checkpointing=True, bf16=True, logging_steps=10)"""
LOADER = f"""
model_name = "Qwen/Qwen2.5-1.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(model_name, torch_dtype=torch.bfloat16,
    attn_implementation="flash_attention_2", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained(model_name)
tokenizer.pad_token = tokenizer.eos_token
peft_config = LoraConfig(r=16, lora_alpha=32, target_modules={PROJECTIONS}, task_type="CAUSAL_LM", lora_dropout=0.05)
trainer = GRPOTrainer(model=model, processing_class=tokenizer,
    reward_funcs=[incremental_format_reward, format_reward, correctness_reward], args=training_args,
    train_dataset=dataset, peft_config=peft_config)
trainer.train()
trainer.save_model("final_model")
"""
UNSLOTH = f"""
model, tokenizer = FastLanguageModel.from_pretrained(model_name="google/gemma-3-1b-it", max_seq_length=1024,
    load_in_4bit=True, fast_inference=True, max_lora_rank=32)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules={PROJECTIONS}, lora_alpha=32,
    use_gradient_checkpointing="unsloth")
trainer = GRPOTrainer(model=model, ...)
trainer.train()
"""
STRING_MODEL = f"""
training_args = {MINIMAL}
trainer = GRPOTrainer(model="MODEL", args=training_args, train_dataset=dataset, reward_funcs=reward_func)
"""
BLOG_TRAINER = """
training_args = CONFIG
trainer = GRPOTrainer(model=model, args=training_args, train_dataset=train_dataset, processing_class=tokenizer,
    reward_function=reward_function, peft_config=lora_config)
"""
STAGES = """
trainer_stage1 = GRPOTrainer(model=model, reward_funcs=[incremental_format_reward, format_reward], ...)
trainer_stage2 = GRPOTrainer(model=model, reward_funcs=[format_reward, correctness_reward], ...)
"""

# Fragments of notes that several of them share.
NO_MODEL, CODE, OUTPUT = "policy.name stays 'tiny'", "reward functions and data are left out", "output_dir = 'out"
WARMUP, EPOCHS = "warmup_steps = 0.1", "max_steps = None is written -1"
BF16, NO_VLLM, OPTIM = (
    "bf16 = True is left out",
    "use_vllm = True becomes False",
    "'adamw_8bit' becomes 'adamw_torch_fused'",
)
LOGGING, BETA, MUCH_BETA = "logging_steps = 10", "kl_coef is called beta", "beta = 0.05 is far above"
TRL_LENGTH = "max_completion_length is not in the script: the recipe asks for 512"
TRL_RATE = "learning_rate is not taken from the script: 1e-05"
NO_ADAPTER, PLAIN = "no adapter in the script", "policy.backend = 'transformers', 16-bit weights"
UNSLOTH_LINES = [
    "line 2: max_lora_rank = 32 is left out",
    "line 4: use_gradient_checkpointing = 'unsloth' becomes grpo",
]


def context(prompt, completion):
    return f"policy.max_seq_length = {prompt + completion}: {prompt} for the prompt + {completion}"


def accumulation(steps, after=None):
    change = f" = {steps} saves no memory" if after is None else f" {steps} -> {after}"
    return f"gradient_accumulation_steps{change}"


# Name -> (script, a fragment of every line that is shown for it on a CPU, what is in the recipe and the settings).
TRAINED = {
    "small GPU": (
        SMALL,
        [
            NO_MODEL,
            WARMUP,
            EPOCHS,
            OUTPUT,
            "max_prompt_length = 256",
            context(256, 512),
            accumulation(4, 8),
            BF16,
            OPTIM,
        ],
        {"max_prompt_length": 256, "warmup_steps": 0.1, "max_steps": -1, "num_train_epochs": 1, "adam_beta2": 0.99},
    ),
    "large GPU": (
        LARGE,
        [NO_MODEL, OUTPUT, "max_prompt_length = 512", context(512, 1024), accumulation(2, 4), BF16, NO_VLLM, LOGGING],
        {"max_prompt_length": 512, "use_vllm": False, "max_steps": -1, "learning_rate": 1e-5, "max_seq_length": 1536},
    ),
    "minimal": (
        STRING_MODEL.replace("MODEL", "Qwen/Qwen2-0.5B-Instruct"),
        [NO_ADAPTER, PLAIN, CODE, OUTPUT, TRL_LENGTH, context(512, 512), TRL_RATE, accumulation(2), LOGGING],
        {"name": "Qwen/Qwen2-0.5B-Instruct", "num_generations": 8, "max_steps": -1, "num_train_epochs": 3}
        | {"backend": "transformers", "load_in_4bit": False},
    ),
    "course": (
        COURSE,
        [
            NO_MODEL,
            "num_generation is called num_generations",
            OUTPUT,
            TRL_LENGTH,
            context(512, 512),
            NO_VLLM,
            accumulation(2),
            LOGGING,
        ],
        {"num_generations": 4, "use_vllm": False, "max_completion_length": 512},
    ),
    "blog": (
        BLOG_TRAINER.replace("CONFIG", BASIC),
        [
            "line 5: model = model is left out: not read",
            "line 5: peft_config = lora_config is left out: not read",
            NO_ADAPTER,
            NO_MODEL,
            CODE,
            BETA,
            "max_new_tokens is called max_completion_length",
            "output_dir = './grpo-output' is left out",
            "max_prompt_length = 512",
            context(512, 256),
            BF16,
            MUCH_BETA,
            accumulation(8),
        ],
        {"beta": 0.05, "max_completion_length": 256, "max_prompt_length": 512, "gradient_checkpointing": True},
    ),
    "blog, maths": (
        BLOG_TRAINER.replace("CONFIG", MATHS),
        [
            "line 5: model = model is left out: not read",
            "line 5: peft_config = lora_config is left out: not read",
            NO_ADAPTER,
            NO_MODEL,
            CODE,
            BETA,
            "max_completion_length = 300",
            "output_dir = './grpo-math-output' is left out",
            context(512, 300),
            accumulation(16, 18),
            BF16,
            "learning_rate = 5e-07",
            MUCH_BETA,
            LOGGING,
        ],
        {"num_generations": 6, "gradient_accumulation_steps": 18, "per_device_train_batch_size": 1},
    ),
    "transformers and PEFT": (
        LOADER,
        [
            "line 8: args = training_args is left out: not read",
            "line 3: attn_implementation = 'flash_attention_2' is left out",
            "line 3: device_map = 'auto' is left out",
            "task_type = 'CAUSAL_LM' is what a run trains anyway",
            PLAIN,
            CODE,
            context(512, 96),
        ],
        {"backend": "transformers", "load_in_4bit": False, "dtype": "bfloat16", "r": 16, "lora_alpha": 32}
        | {"lora_dropout": 0.05, "name": "Qwen/Qwen2.5-1.5B-Instruct"},
    ),
    "Unsloth": (
        UNSLOTH,
        [*UNSLOTH_LINES, CODE, "policy.fast_inference = True becomes False"],
        {"backend": "unsloth", "load_in_4bit": True, "max_seq_length": 1024, "r": 32, "lora_alpha": 32}
        | {"gradient_checkpointing": True, "name": "google/gemma-3-1b-it", "fast_inference": True, "use_vllm": False},
    ),
    "Unsloth with the small GPU's config": (
        UNSLOTH.replace("...", "args=args, peft_config=peft_config") + f"args = {SMALL}",
        [
            "line 6: peft_config = peft_config is left out: not read",
            *UNSLOTH_LINES,
            CODE,
            WARMUP,
            EPOCHS,
            OUTPUT,
            "max_prompt_length = 256",
            accumulation(4, 8),
            BF16,
            "policy.fast_inference = True becomes False",
            OPTIM,
        ],
        {"max_seq_length": 1024, "max_prompt_length": 256, "r": 32},
    ),
    "two stages": (
        STAGES,
        [
            "line 2: model = model is left out: not read",
            "line 3: model = model is left out: not read",
            *(NO_ADAPTER, "line 3: this GRPOTrainer is left out", NO_MODEL, CODE, context(512, 96)),
        ],
        {"task": "arithmetic"},
    ),
}

# Name -> (script, what the error says): where no run can be read, and where it cannot be.
REFUSED = {
    "a context that is too short": (
        UNSLOTH + f"args = {LARGE}",
        "max_completion_length = 1024 and policy.max_seq_length = 1024.*policy.max_seq_length to 1536",
    ),
    "a group of one": (SMALL.replace("num_generations=8", "num_generations=1"), "num_generations = 1.*at least 2"),
    "not Python": ("x = 1\nmodel = AutoModel( a, b c )", "script, line 2: model = AutoModel.*a script is Python 3"),
    "nothing to read": ("print('hello')", "GRPOConfig and GRPOTrainer"),
    "a task file": ("task = Task('a', rows, [f])", "named in a recipe, as its `task:`"),
    "another library's trainer": (
        "import verifiers as vf\nvf.GRPOTrainer(m)",
        "line 2: verifiers.GRPOTrainer.*of TRL's",
    ),
    "by its name": ("from verifiers import GRPOTrainer\nGRPOTrainer(m)", "line 2: verifiers.GRPOTrainer"),
    "TRL's other trainer": (
        "from trl.experimental.async_grpo import AsyncGRPOTrainer\nAsyncGRPOTrainer(model='a/b')",
        "line 2: trl.experimental.async_grpo.AsyncGRPOTrainer",
    ),
    "too long": ("x = 1\n" * 50_000, "300,000 characters"),
    "too deep": ("x = " + "-" * 50_000 + "1\nGRPOConfig()", "nested too deeply|a script is Python"),
    "a long sum": (f"GRPOConfig(beta={'+'.join('1' * 20_000)})", "nested too deeply|a script is Python"),
}


@pytest.fixture(scope="module")
def fields():
    return settings_of.field_names(trainer_classes()[0])


@pytest.fixture(scope="module")
def policy_of():
    """The embedded policy as a script loads its own: one for each way, and this module's, whose tests train it."""
    loaded = {}

    def policy(part: PolicyPart):
        way = {"backend": part.backend, "load_in_4bit": part.load_in_4bit, "dtype": part.dtype}
        key = tuple(way.values())
        if key not in loaded:
            loaded[key] = load_policy("tiny", **way)
        return loaded[key]

    return policy


def planned(script, fields):
    """(recipe, settings, all lines) of a script on a CPU without bfloat16."""
    pasted = read_script(script, fields=fields)
    recipe, settings, notes = settings_of.normalised(pasted.recipe, fields, CPU)
    settings_of.batch(settings)
    settings_of.check_lengths(recipe, settings)
    return recipe, settings, [*pasted.notes, *notes]


def for_the_tiny_policy(recipe: Recipe) -> Recipe:
    """The recipe with what the embedded policy and a test's patience need: everything else as it was asked for."""
    grpo = {**recipe.grpo, "max_steps": 1, "report_to": "none"}
    grpo["max_completion_length"] = min(grpo.get("max_completion_length", 96), 24)
    small = PolicyPart()
    policy = recipe.policy.model_copy(update={"name": small.name, "max_seq_length": small.max_seq_length})
    changes = {"policy": policy, "task": "arithmetic", "grpo": grpo}
    changes["max_prompt_length"] = recipe.max_prompt_length and min(recipe.max_prompt_length, 232)
    return recipe.model_copy(update=changes)


@pytest.mark.parametrize("name", TRAINED)
def test_every_translation_is_a_line_and_every_line_is_a_translation(fields, name):
    script, lines, expected = TRAINED[name]
    recipe, settings, notes = planned(script, fields)
    assert [said in line for said, line in zip(lines, notes, strict=True)] == [True] * len(lines), notes
    found = {**settings, **recipe.lora.model_dump(), **recipe.policy.model_dump(), **recipe.model_dump()}
    assert {key: found[key] for key in expected} == expected
    Recipe.of(recipe.model_dump())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_read_trains_a_step(home, fields, policy_of, name):
    recipe, _, _ = planned(TRAINED[name][0], fields)
    asked = for_the_tiny_policy(recipe)
    policy = policy_of(asked.policy)
    assert policy.backend_name == recipe.policy.backend
    assert (policy.precision == "nf4") == recipe.policy.load_in_4bit
    assert recipe.policy.dtype in (None, policy.compute_dtype)
    run = train(asked, policy=policy, task=arithmetic(64, 8))
    assert run.manifest()["result"]["steps"] == 1
    in_force = run.manifest()["settings"]["in_force"]
    for key in ("learning_rate", "beta", "num_generations", "per_device_train_batch_size"):
        assert in_force[key] == recipe.grpo.get(key, settings_of.DEFAULTS[key])


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_no_run_is_refused(fields, name):
    script, said = REFUSED[name]
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        planned(script, fields)


def test_nothing_of_a_script_is_run(fields, tmp_path):
    victim = tmp_path / "victim"
    script = f"""
import os, nothing_of_that_name
open({str(victim)!r}, "w").write("run")
GRPOConfig(learning_rate=open({str(victim)!r}, "w").write("1") * 1e-6, beta=__import__("os").getpid(), top_p=0.9)
"""
    before = set(sys.modules)
    pasted = read_script(script, fields=fields)
    assert not victim.exists()
    assert "nothing_of_that_name" not in set(sys.modules) - before
    assert pasted.recipe.grpo == {"top_p": 0.9, "max_completion_length": 512}
    assert any("beta = __import__('os').getpid() is left out" in line for line in pasted.notes)


@pytest.mark.parametrize(
    ("script", "grpo"),
    [
        ("LR = 1e-5\nGRPOConfig(learning_rate=LR)", {"learning_rate": 1e-5}),
        ("a = b = 4\nGRPOConfig(num_generations=a, top_k=b, top_p=-0.25)", {"num_generations": 4, "top_k": 4, "top_p": -0.25}),
        ("c = {'beta': 0.5}\nGRPOConfig(**c)", {"beta": 0.5}),
        ("GRPOConfig(generation_kwargs={'do_sample': True})", {"generation_kwargs": {"do_sample": True}}),
        ("beta = 0.1\nGRPOConfig(beta=beta)", {"beta": 0.1}),
        ("b = 0.1\ndef main():\n    GRPOConfig(beta=b)", {"beta": 0.1}),
        ("from trl import GRPOConfig as C\nC(beta=0.1)", {"beta": 0.1}),
        ("import trl as t\ndef main():\n    t.GRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("from trl import *\nb = 0.1\nGRPOConfig(beta=b)", {"beta": 0.1}),
        ("!pip install trl\n%cd x\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("%pip install a \\\n    'b==1' \\\n    c\nif colab:\n    !pip install d\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("```python\nGRPOConfig(beta=0.1)\n```", {"beta": 0.1}),
        ("    GRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("BETA = 0.3\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("GRPOConfig(kl_coef=0.1, beta=0.1)", {"beta": 0.1}),
    ],
)  # fmt: skip
def test_literals_and_names_that_are_bound_once_to_one_are_read(fields, script, grpo):
    pasted = read_script(script, fields=fields)
    pasted.recipe.grpo.pop("max_completion_length")
    assert pasted.recipe.grpo == grpo
    assert not [note for note in pasted.notes if "not read" in note]


@pytest.mark.parametrize(
    "script",
    [
        # Not a literal, though a person could work it out.
        "a = 2\nGRPOConfig(beta=a * 2, top_k=5)",
        "GRPOConfig(beta=1 - 0.25, top_k=5)",
        "a = 2\nb = a\nGRPOConfig(beta=b, top_k=5)",
        "GRPOConfig(beta=1 / 0, top_k=5)",
        "GRPOConfig(beta=1j, top_k=5)",
        "GRPOConfig(beta=b'1', top_k=5)",
        "GRPOConfig(beta={1}, top_k=5)",
        "GRPOConfig(beta=f'{x}', top_k=5)",
        # Bound more than once, or not at the top level: only running the script would tell.
        "b = 0.1\nb = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nif x:\n    b = 0.2\nb = 0.3\nGRPOConfig(beta=b, top_k=5)",
        "def f(b):\n    return b\nb = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "def main():\n    b = 0.1\n    GRPOConfig(beta=b, top_k=5)\nb = 0.2",
        "if __name__ == '__main__':\n    b = 0.1\n    GRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nif x:\n    b = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "if x:\n    b = 0.1\nelse:\n    b = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "for i in x:\n    b = 0.1\n    b = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "match x:\n    case 1:\n        b = 0.1\n    case _:\n        b = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "async def f():\n    b = 2\n    async for i in x:\n        b = 1\n    GRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ndef f():\n    global b\n    b = 0.2\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nb = 0.2\ndef f():\n    GRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nb += 0.1\nGRPOConfig(beta=b, top_k=5)",
        "for b in x:\n    pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ndef f(b):\n    GRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ndef f(*b):\n    GRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ndef b():\n    pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nfrom settings import b\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nimport settings as b\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nimport b.c\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nfrom settings import *\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nmatch x:\n    case {'k': 1, **b}:\n        pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nmatch x:\n    case [1, *b]:\n        pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nmatch x:\n    case 1 as b:\n        pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ntry:\n    x()\nexcept ValueError as b:\n    pass\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\nx((b := 0.2))\nGRPOConfig(beta=b, top_k=5)",
        "b = 0.1\ndel b\nGRPOConfig(beta=b, top_k=5)",
        "b, c = 0.1, 0.2\nGRPOConfig(beta=b, top_k=5)",
        "k = k\nGRPOConfig(beta=k, top_k=5)",
        # What a name stands for may have been changed since.
        "b = [0.1]\nb.append(0.2)\nGRPOConfig(beta=b, top_k=5)",
        "b = {'x': 1}\nb['x'] = 2\nGRPOConfig(beta=b, top_k=5)",
    ],
)
def test_what_only_running_the_script_would_tell_is_a_note_by_its_name(fields, script):
    pasted = read_script(script, fields=fields)
    pasted.recipe.grpo.pop("max_completion_length")
    assert pasted.recipe.grpo == {"top_k": 5}
    assert re.search(r"line \d+: beta = .* is left out: not read", "\n".join(pasted.notes))


@pytest.mark.parametrize("source", ["dict(beta=0.1)", "{'beta': b}", "{'beta': 0.1}\nc['beta'] = 0.2", "{'beta': 0.1, **more}"])
def test_settings_that_are_unpacked_and_cannot_be_read_are_a_note(fields, source):
    pasted = read_script(f"c = {source}\nGRPOConfig(top_k=5, **c)", fields=fields)
    assert pasted.recipe.grpo == {"top_k": 5, "max_completion_length": 512}
    assert any("**c is left out: not read" in note for note in pasted.notes)
    assert any("max_steps is not taken from the script: 100" in note for note in pasted.notes), "it may be behind the two stars"


LEFT_OUT = [
    ("GRPOConfig(learning_rat=1e-5)", "learning_rat = 1e-05 is left out.*nearest is 'learning_rate'"),
    ("GRPOConfig(vllm_device='auto')", "vllm_device = 'auto' is left out: the installed GRPOConfig has no field"),
    ("GRPOConfig(reward_weights=[1.0, 0.5])", r"reward_weights = \[1.0, 0.5\] is left out: recipe field reward_weights"),
    ("GRPOConfig('out')", "output_dir = 'out' is left out"),
    ("GRPOConfig(**more)", r"line 1: \*\*more is left out"),
    ("a = GRPOConfig(beta=0.1)\na.beta = 0.3", "line 2: a.beta = ... is left out: only keywords"),
    ("GRPOTrainer(m, f, GRPOConfig())\ntrainer.args.beta = 0.3", "line 2: trainer.args.beta = ... is left out"),
    ("LoraConfig(r=8, megatron_core=0)", "megatron_core = 0 is left out: a recipe has no field"),
    ("AutoModelForCausalLM.from_pretrained('a/b', output_loading_info=False)", "output_loading_info = False is left out"),
    ("LoraConfig(r=8, lora_alfa=16)", "lora_alfa = 16 is left out: a recipe has no field"),
    ("LoraConfig(r=4, target_modules='.*proj')", "target_modules = '.*proj' is left out"),
    ("FastLanguageModel.from_pretrained('a/b', max_seq_len=512)", "max_seq_len = 512 is left out"),
    ("FastLanguageModel.from_pretrained('a/b', load_in_8bit=True)", "load_in_8bit = True is left out: .*4 or 16 bits"),
    ("FastLanguageModel.from_pretrained('a/b', token='hf_1')", "token = ... is left out: set HF_TOKEN"),
    ("FastLanguageModel.from_pretrained('a/b')\nLoraConfig(r=4)\nLoraConfig(r=8)", "r = 8 is left out: lora.r is 4 in line 2"),
    ("GRPOTrainer('a/b', f, callbacks=[Mine()], eval_dataset=None)", r"callbacks = \[Mine\(\)\] is left out: they are code"),
    ("GRPOTrainer('a/b', **more)", r"\*\*more is left out"),
    ("ds = load_dataset('a/b')\nGRPOConfig()", "data .*'a/b'.* are left out.*task file"),
    ("ds = load_dataset('openai/gsm8k', 'main')\nGRPOConfig()", "task = 'gsm8k'"),
    ("GRPOConfig(beta=0.1)", "max_steps is not taken from the script: 100"),
    ("GRPOConfig(use_liger_kernel=True)", "use_liger_kernel is left out: liger_kernel is not installed here"),
    ("GRPOConfig(use_liger_loss=True)", "use_liger_loss is left out: liger_kernel is not installed here"),
    ("GRPOConfig(max_steps=args.steps)", "max_steps is not taken from the script: 100"),
    ("m = 'a/b'\nm = 'c/d'\nGRPOTrainer(model=m)", "line 3: model = m is left out: not read"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "said"), LEFT_OUT)
def test_what_is_not_read_is_a_note_and_never_a_refusal(fields, script, said):
    assert re.search(said, "\n".join(read_script(script, fields=fields).notes), re.DOTALL)


def policy_of_script(script, fields):
    pasted = read_script(script, fields=fields)
    return pasted.recipe.policy.name, pasted.recipe.policy.backend, pasted.named


PLAIN_MODEL = "model = AutoModelForCausalLM.from_pretrained('a/b')\n"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (PLAIN_MODEL, ("a/b", "transformers", True)),
        ("name = 'a/b'\n" + PLAIN_MODEL.replace("'a/b'", "name"), ("a/b", "transformers", True)),
        ("name = 'c/d'\nname = 'a/b'\n" + PLAIN_MODEL.replace("'a/b'", "name"), ("tiny", "transformers", False)),
        # The one that is trained; what is loaded after the training, or for something else, is not the policy.
        ("import trl\njudge = AutoModelForCausalLM.from_pretrained('c/d')\n" + PLAIN_MODEL + "GRPOTrainer(model)",
         ("a/b", "transformers", True)),
        (PLAIN_MODEL + "GRPOTrainer(model)\nmodel = AutoModelForCausalLM.from_pretrained('me/trained')",
         ("a/b", "transformers", True)),
        ("GRPOTrainer(model='a/b')\nAutoModelForCausalLM.from_pretrained('me/trained')", ("a/b", "transformers", True)),
        ("from trl import GRPOTrainer\nGRPOTrainer(model=parsed.path)", ("tiny", "transformers", False)),
        ("import trl\nm = 'a/b'\nm = 'c/d'\njudge = AutoModelForCausalLM.from_pretrained('e/f')\nGRPOTrainer(model=m)",
         ("tiny", "transformers", False)),
        ("import unsloth\nfrom trl import GRPOTrainer\nGRPOTrainer(model=parsed.path)", ("tiny", "unsloth", False)),
        ("GRPOConfig()", ("tiny", "unsloth", False)),
    ],
)  # fmt: skip
def test_the_policy_is_the_one_that_is_trained(fields, script, found):
    assert policy_of_script(script, fields) == found


def test_the_config_is_the_one_that_the_trainer_gets(fields):
    script = f"a = {MINIMAL}\nb = {SMALL}\nGRPOTrainer(model='x/y', args=a)"
    pasted = read_script(script, fields=fields)
    assert pasted.recipe.grpo["num_train_epochs"] == 3
    assert any(note.startswith("line 3: this GRPOConfig is left out: the script does not show") for note in pasted.notes)


def test_what_asks_for_nothing_needs_no_line(fields):
    script = (
        "q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True, "
        "bnb_4bit_compute_dtype=torch.float16)\np = LoraConfig(bias='none')\n"
        "GRPOTrainer('a/b', eval_dataset=None, callbacks=[], optimizers=(None, None), quantization_config=q, peft_config=p)"
    )
    pasted = read_script(script, fields=fields)
    [line] = [line for line in pasted.notes if line.startswith("line")]
    assert line == "line 3: quantization_config = q is read where it is made"
    policy = pasted.recipe.policy
    assert (policy.name, policy.load_in_4bit, policy.dtype) == ("a/b", True, "float16")


def test_weights_and_adapter_as_unsloths_loaders_ask_for_them(fields):
    script = (
        "m, t = FastModel.from_pretrained('a/b', load_in_16bit=True, load_in_fp8=False, fast_inference=False)\n"
        "m = FastModel.get_peft_model(m, r=32, lora_alpha=64, random_state=7, use_gradient_checkpointing='unsloth', "
        "target_modules='all-linear', bias='none')\nGRPOTrainer(model=m)"
    )
    pasted = read_script(script, fields=fields)
    recipe = pasted.recipe
    assert (recipe.policy.name, recipe.policy.backend, recipe.policy.load_in_4bit) == ("a/b", "unsloth", False)
    assert (recipe.lora.r, recipe.lora.lora_alpha, recipe.seed) == (32, 64, 7)
    assert recipe.lora.target_modules == list(SEVEN_PROJECTIONS)
    assert recipe.grpo["gradient_checkpointing"] is True
    assert not any("left out" in line for line in pasted.notes if line.startswith("line"))


def test_a_refusal_says_what_was_left_out_of_the_script():
    script = (
        "m, t = FastLanguageModel.from_pretrained('unsloth/Qwen3-8B', load_in_fp8=True, fast_inference=True)\n"
        "GRPOTrainer(m, f, GRPOConfig(use_vllm=True, num_generations=0))"
    )
    with pytest.raises(RecipeError) as raised:
        wb_plan(script, machine=CPU)
    assert any("load_in_fp8 = True is left out" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("loader", ["FastVisionModel", "AutoModelForImageTextToText", "Gemma3ForConditionalGeneration"])
def test_a_loader_of_a_vision_model_is_named(loader):
    notes = read_script(
        f'model = {loader}.from_pretrained("a/b-VL")\ntrainer = GRPOTrainer(model=model, args=GRPOConfig(beta=0))'
    ).notes
    assert [note for note in notes if note.startswith(f"line 1: {loader}.from_pretrained is left out")]


# -- a name in a loader that is left out; a newer Python; what is read elsewhere -----------------------------------------
CONFIG = "args = GRPOConfig(learning_rate=1e-5)\n"
IMPORTS = "from trl import GRPOConfig, GRPOTrainer\nfrom transformers import *\nfrom unsloth import FastVisionModel\n"


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        ("model, processor = FastVisionModel.from_pretrained('unsloth/gemma-4-E2B-it', max_seq_length=2048)\n",
         "unsloth/gemma-4-E2B-it"),
        ("base = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\nmodel = wrapped(base)\n", "Qwen/Qwen2.5-0.5B"),
        ("model = Gemma3ForConditionalGeneration.from_pretrained(pretrained_model_name_or_path='google/gemma-3-4b-it')\n",
         "google/gemma-3-4b-it"),
        ("tokenizer = AutoTokenizer.from_pretrained('Qwen/Qwen3-0.6B')\nmodel = build()\n", "Qwen/Qwen3-0.6B"),
        ("ID = 'Qwen/Qwen3-1.7B'\nprocessor = AutoProcessor.from_pretrained(ID)\nmodel = build()\n", "Qwen/Qwen3-1.7B"),
    ],
)  # fmt: skip
def test_a_name_in_a_loader_that_is_left_out_is_the_plan_s_model(fields, loader, name):
    read = read_script(IMPORTS + loader + CONFIG + "GRPOTrainer(model=model, args=args)\n", fields=fields, backend="transformers")
    assert (read.recipe.policy.name, read.named) == (name, True)
    assert [note for note in read.notes if f"policy.name = {name!r}, from" in note]


@pytest.mark.parametrize(
    "loader",
    [
        "model = AutoModelForImageTextToText.from_pretrained(sys.argv[1])\n",
        "tokenizer = AutoTokenizer.from_pretrained('./trained')\nmodel = build()\n",
        "GRPOTrainer(model=build(), args=args)\njudge = AutoModelForCausalLM.from_pretrained('a/judge')\n",
    ],
)
def test_no_literal_a_folder_and_what_comes_after_training_name_no_model(fields, loader):
    read = read_script(IMPORTS + CONFIG + loader + "model = None\n", fields=fields, backend="transformers")
    if "judge" not in loader:
        assert not read.named
    assert read.recipe.policy.name == "tiny"


def test_two_names_are_both_said(fields):
    loads = "{} = AutoModelForImageTextToText.from_pretrained('x/{}')\n".format
    text = loads("judge", "judge") + loads("a", "one") + loads("b", "two")
    read = read_script(IMPORTS + text + CONFIG + "GRPOTrainer(model=b, args=args)\n", fields=fields, backend="transformers")
    [line] = [note for note in read.notes if "'x/one'" in note]
    assert "x/two" in line
    assert "judge" not in line


@pytest.mark.parametrize(
    ("newer", "line"),
    [
        ('print(f"{k["prompts"][0]} and {", ".join(names)}")\n', 4),
        ("type Rows = list[dict]\n", 4),
        ("def first[T](rows: list[T]) -> T:\n    return rows[0]\n", 4),
        ("class Box[T]:\n    pass\n", 4),
        ("try:\n    pass\nexcept ValueError, KeyError:\n    pass\n", 6),
        ('text = t"{name} is here"\n', 4),
    ],
)
def test_a_script_of_a_newer_python_is_read_by_what_can_be_read(fields, newer, line):
    read = read_script(
        IMPORTS + newer + "GRPOTrainer(model='Qwen/Qwen3-0.6B', args=GRPOConfig(learning_rate=3e-5))\n", fields=fields
    )
    assert read.recipe.grpo["learning_rate"] == 3e-5
    assert read.recipe.policy.name == "Qwen/Qwen3-0.6B"
    import ast

    try:
        ast.parse(newer)
    except SyntaxError:
        assert [note for note in read.notes if note.startswith(f"line {line} ")]


def test_what_is_no_python_of_any_version_is_refused(fields):
    for text in ("hello this is no python\n", 'x = f"{a["b"]}\nGRPOConfig(learning_rate=1e-5\n'):
        with pytest.raises(RecipeError, match="a script is Python"):
            read_script(text, fields=fields)


def test_quantization_config_and_task_type_have_a_line(fields):
    text = (
        "bits = BitsAndBytesConfig(load_in_4bit=True)\n"
        "model = AutoModelForCausalLM.from_pretrained('a/b', quantization_config=bits)\n"
        "lora = LoraConfig(r=8, task_type=TaskType.CAUSAL_LM)\n"
    )
    trains = CONFIG + "GRPOTrainer(model=model, args=args, peft_config=lora)\n"
    read = read_script(IMPORTS + "from peft import *\n" + text + trains, fields=fields, backend="transformers")
    assert read.recipe.policy.load_in_4bit
    assert [note for note in read.notes if note.startswith("line 6: quantization_config = bits")]
    assert [note for note in read.notes if note.startswith("line 7: task_type = 'CAUSAL_LM'")]
