"""Pasted scripts: read without being run, translated line by line, and trained for a step where they are not refused."""

from __future__ import annotations

import sys

import pytest

from workbench.errors import RecipeError
from workbench.recipe import SEVEN_PROJECTIONS, PolicyPart, Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training import plan
from workbench.training.fast_inference import COST
from workbench.training.plan.device import Machine
from workbench.training.plan.parameters import PLACES, UNSLOTH_ADAPTER, UNSLOTH_LOADER, installed
from workbench.training.plan.pasting import read_script
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
CONSTANTS = """
MODEL_NAME = "Qwen/Qwen3-8B"
DATASET_NAME = "gsm8k"
NUM_GENERATIONS = 4
KL_COEF = 0.05
TEMPERATURE = 0.7
"""
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

# Lines that several of them share.
NO_MODEL = "no model's name in the script: policy.name stays 'tiny'"
EPSILON = "max_steps = None is written -1 in this version: train for num_train_epochs"
BF16 = "bf16 = True is left out: this CPU only emulates bfloat16; computed in: float32"
NO_VLLM = f"use_vllm = True becomes False: this machine has no GPU; {COST}"
LOGGING = "logging_steps = 10: metrics are averages over 10 steps; 1 records every step"
MUCH_BETA = "beta = 0.05 is far above today's practice (0, or about 0.001): the reference holds the policy back"
BETA = "kl_coef is called beta in this version: beta = 0.05"
UNSEEN = "no adapter in the script: here an adapter is trained (recipe field lora)"
PEFT = "no adapter in the script: there it would be full fine-tuning; here an adapter is trained (recipe field lora)"


def output(folder):
    return f"output_dir = {folder!r} is left out: checkpoints lie in runs/<run_name>/checkpoints"


def prompt(tokens):
    why = "TRL no longer cuts prompts, so longer ones are left out and counted"
    return f"max_prompt_length belongs to the recipe, not to grpo: max_prompt_length = {tokens} ({why})"


def accumulation(steps):
    return (
        f"gradient_accumulation_steps = {steps} saves no memory in generation: the completions of all {steps} passes are "
        "generated at once (steps_per_generation says how many)"
    )


def context(prompt_tokens, completion, asked=True):
    first = f"max_prompt_length {prompt_tokens}" if asked else f"{prompt_tokens} for the prompt"
    total = prompt_tokens + completion
    return (
        f"policy.max_seq_length = {total}: {first} + max_completion_length {completion}, as the script does not say it"
    )


def raised(size, before, after, group):
    return (
        f"gradient_accumulation_steps {before} -> {after}: {size} x {before} = {size * before} completions hold no whole "
        f"number of groups of {group}, {size} x {after} = {size * after} do; all {size * after} are generated at once, so "
        f"generation takes more memory (a forward pass does not: per_device_train_batch_size stays {size})"
    )


def code(functions, task="arithmetic"):
    if functions and task == "gsm8k":
        return f"the script's reward functions ({functions}) are not read: a task file of your own has them"
    return (
        f"the script's reward functions ({functions}) and data are code, and not read: put them into a task file "
        "(notebook 02 writes one) and name it in `task:`; until then the task is 'arithmetic'"
    )


LOADER_LINES = [
    "line 3: plain transformers, weights as they are stored: policy.backend = 'transformers', policy.load_in_4bit = False",
    "line 3: torch_dtype is called dtype in this version: policy.dtype = 'bfloat16'",
    "line 3: attn_implementation = 'flash_attention_2' is left out: the library chooses the attention that this device has",
    "line 3: device_map = 'auto' is left out: a policy is loaded whole on the one device",
    code("incremental_format_reward, format_reward, correctness_reward"),
    "line 6: tokenizer.pad_token is left alone: TRL gives a tokenizer without a padding token its own",
    "line 12: save_model: the adapter is saved in runs/<run_name>/checkpoints/final; notebook 05 exports it",
    context(512, 96, asked=False),
]
UNSLOTH_LINES = [
    "line 2: max_lora_rank = 32 is left out: vLLM is told lora.r",
    "line 4: use_gradient_checkpointing becomes gradient_checkpointing = True",
]
NO_FAST_INFERENCE = NO_VLLM.replace("use_vllm", "policy.fast_inference")

# Name -> (script, every line that is shown for it on a CPU, what is in the recipe and the settings).
TRAINED = {
    "small GPU": (
        SMALL,
        [
            NO_MODEL,
            "warmup_ratio is called warmup_steps in this version: warmup_steps = 0.1",
            EPSILON,
            output("outputs/grpo-model"),
            prompt(256),
            context(256, 512),
            raised(1, 4, 8, 8),
            BF16,
            "optim = 'adamw_8bit' becomes 'adamw_torch_fused': it has no CPU kernels, and an adapter's states are small",
        ],
        {"max_prompt_length": 256, "warmup_steps": 0.1, "max_steps": -1, "num_train_epochs": 1, "adam_beta2": 0.99},
    ),
    "large GPU": (
        LARGE,
        [
            NO_MODEL,
            output("outputs/grpo-model"),
            prompt(512),
            context(512, 1024),
            raised(4, 2, 4, 16),
            BF16,
            NO_VLLM,
            LOGGING,
        ],
        {"max_prompt_length": 512, "use_vllm": False, "max_steps": -1, "learning_rate": 1e-5, "max_seq_length": 1536},
    ),
    "minimal": (
        STRING_MODEL.replace("MODEL", "Qwen/Qwen2-0.5B-Instruct"),
        [
            "line 4: plain transformers, weights as they are stored: policy.backend = 'transformers', "
            "policy.load_in_4bit = False",
            "line 4: " + PEFT,
            code("reward_func"),
            output("output"),
            "max_completion_length is not said: 512, as in TRL",
            context(512, 512, asked=False),
            "not in the script, so the workbench's: learning_rate = 1e-05 (TRL: 1e-06, for full fine-tuning)",
            accumulation(2),
            LOGGING,
        ],
        {"name": "Qwen/Qwen2-0.5B-Instruct", "num_generations": 8, "max_steps": -1, "num_train_epochs": 3},
    ),
    "minimal, with a place to fill": (
        STRING_MODEL.replace("MODEL", "your_model"),
        [
            "line 4: model = 'your_model' holds a place: write a model's name into policy.name",
            "line 4: " + UNSEEN,
            NO_MODEL,
            code("reward_func"),
            output("output"),
            "max_completion_length is not said: 512, as in TRL",
            context(512, 512, asked=False),
            "not in the script, so the workbench's: learning_rate = 1e-05 (TRL: 1e-06, for full fine-tuning)",
            accumulation(2),
            LOGGING,
        ],
        {"name": "tiny", "gradient_accumulation_steps": 2},
    ),
    "course": (
        COURSE,
        [
            NO_MODEL,
            "num_generation is called num_generations in this version: num_generations = 4",
            output("output"),
            "max_completion_length is not said: 512, as in TRL",
            context(512, 512, asked=False),
            NO_VLLM,
            accumulation(2),
            LOGGING,
        ],
        {"num_generations": 4, "use_vllm": False, "max_completion_length": 512},
    ),
    "blog": (
        BLOG_TRAINER.replace("CONFIG", BASIC),
        [
            "line 5: reward_function is called reward_funcs in this version of GRPOTrainer",
            NO_MODEL,
            code("reward_function"),
            BETA,
            "max_new_tokens is called max_completion_length in this version: max_completion_length = 256",
            output("./grpo-output"),
            prompt(512),
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
            "line 5: reward_function is called reward_funcs in this version of GRPOTrainer",
            NO_MODEL,
            code("reward_function"),
            BETA,
            "max_new_tokens is called max_completion_length in this version: max_completion_length = 300",
            output("./grpo-math-output"),
            context(512, 300, asked=False),
            raised(1, 16, 18, 6),
            BF16,
            "learning_rate = 5e-07 is a value for full fine-tuning; an adapter usually takes 5e-6 to 5e-5, and with this "
            "one may not move",
            MUCH_BETA,
            LOGGING,
        ],
        {"num_generations": 6, "gradient_accumulation_steps": 18, "per_device_train_batch_size": 1},
    ),
    "constants": (
        CONSTANTS,
        [
            "line 2: MODEL_NAME is taken as policy.name = 'Qwen/Qwen3-8B'",
            "line 4: NUM_GENERATIONS = 4 is taken as the setting num_generations",
            "line 5: KL_COEF = 0.05 is taken as the setting kl_coef",
            "line 6: TEMPERATURE = 0.7 is taken as the setting temperature",
            "line 3: dataset 'gsm8k': task = 'gsm8k', which ships, with its own prompts and rewards",
            BETA,
            context(512, 96, asked=False),
            MUCH_BETA,
        ],
        {"name": "Qwen/Qwen3-8B", "task": "gsm8k", "beta": 0.05, "temperature": 0.7, "num_generations": 4},
    ),
    "transformers and PEFT": (
        LOADER,
        LOADER_LINES,
        {"backend": "transformers", "load_in_4bit": False, "dtype": "bfloat16", "r": 16, "lora_alpha": 32}
        | {"lora_dropout": 0.05, "name": "Qwen/Qwen2.5-1.5B-Instruct"},
    ),
    "Unsloth": (
        UNSLOTH,
        [*UNSLOTH_LINES, NO_FAST_INFERENCE],
        {"backend": "unsloth", "load_in_4bit": True, "max_seq_length": 1024, "r": 32, "lora_alpha": 32}
        | {"gradient_checkpointing": True, "name": "google/gemma-3-1b-it", "fast_inference": True, "use_vllm": False},
    ),
    "Unsloth with the small GPU's config": (
        UNSLOTH.replace("...", "args=args, peft_config=peft_config") + f"args = {SMALL}",
        [
            *UNSLOTH_LINES,
            "line 6: peft_config is left out: with Unsloth the adapter is made when the policy is loaded (recipe field "
            "lora), and TRL refuses a second one",
            "the script's data are code",
            *["warmup_ratio is called warmup_steps in this version: warmup_steps = 0.1", EPSILON],
            *[output("outputs/grpo-model"), prompt(256), raised(1, 4, 8, 8), BF16, NO_FAST_INFERENCE],
            "optim = 'adamw_8bit' becomes 'adamw_torch_fused': it has no CPU kernels, and an adapter's states are small",
        ],
        {"max_seq_length": 1024, "max_prompt_length": 256, "r": 32},
    ),
    "two stages": (
        STAGES,
        [
            "line 3: 2 trainers after one another: `stages:` of one recipe go on with the same adapter",
            "line 2: " + UNSEEN,
            NO_MODEL,
            code("incremental_format_reward, format_reward, correctness_reward"),
            context(512, 96, asked=False),
        ],
        {"task": "arithmetic"},
    ),
}
TRAINED["Unsloth with the small GPU's config"][1].remove("the script's data are code")

# Name -> (script, what the error says).
REFUSED = {
    "a context that is too short": (
        UNSLOTH + f"args = {LARGE}",
        "max_completion_length = 1024 and policy.max_seq_length = 1024.*policy.max_seq_length to 1536",
    ),
    "one group is more than both": (
        f"args = {SMALL.replace('num_generations=8', 'num_generations=1')}",
        "num_generations = 1.*at least 2 completions",
    ),
    "two setups in one": (
        LOADER + UNSLOTH,
        "lora.r is 32 in line 16 and 16 in line 7|lora.r is 16 in line 7 and 32 in line 16",
    ),
    "two configs in one": (f"a = {SMALL}\nb = {LARGE}", "2 GRPOConfig calls, in lines 1 and 6.*a recipe is one run"),
    "a typing error in the config": ("GRPOConfig(learning_rat=1e-5)", "grpo.learning_rat.*'learning_rate'"),
    "a typing error in the adapter": ("LoraConfig(r=8, lora_alfa=16)", "LoraConfig.lora_alfa.*'lora_alpha'"),
    "a typing error in the loader": (
        "FastLanguageModel.from_pretrained('a/b', max_seq_len=512)",
        "line 1: FastLanguageModel.from_pretrained.max_seq_len.*'max_seq_length'",
    ),
    "a typing error in the trainer": ("GRPOTrainer(model='a/b', reward_fns=[f])", "reward_fns.*'reward_funcs'"),
    "old and new name": ("GRPOConfig(kl_coef=0.1, beta=0.2)", "kl_coef = 0.1 and grpo.beta = 0.2"),
    "a typing error after the config": (
        "args = GRPOConfig()\nargs.learning_rat = 1",
        "grpo.learning_rat.*'learning_rate'",
    ),
    "a typing error after the adapter": ("c = LoraConfig(r=8)\nc.lora_alfa = 16", "LoraConfig.lora_alfa.*'lora_alpha'"),
    "a typing error in the quantisation": (
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_typ='nf4')",
        "line 1: BitsAndBytesConfig.bnb_4bit_quant_typ.*'bnb_4bit_quant_type'",
    ),
    "8 bits by a config": (
        "BitsAndBytesConfig(load_in_8bit=True, bnb_4bit_quant_type='fp4', nonsense=1)",
        "line 1: BitsAndBytesConfig.load_in_8bit=True.*4 or in 16 bits",
    ),
    "a parameter of nothing": (
        "BitsAndBytesConfig(load_in_4bit=True, nonsense=1)",
        "nonsense.*it has bnb_4bit_compute",
    ),
    "8 bits": ("FastLanguageModel.from_pretrained('a/b', load_in_8bit=True)", "load_in_8bit.*4 or in 16 bits"),
    "not Python": ("x = 1\nmodel = AutoModel( a, b c )", "script, line 2: model = AutoModel.*a script is Python"),
    "nothing to read": ("print('hello')", "no GRPOConfig, GRPOTrainer or model loader is called"),
    "a task file": ("task = Task('a', rows, [f])", "name it in a recipe, as its `task:`"),
    "another library's trainer": (
        "import verifiers as vf\n\nvf.GRPOTrainer(model=m)",
        "line 3: vf.GRPOTrainer of verifiers.*calling TRL's GRPOConfig and GRPOTrainer",
    ),
    "another library's trainer, by its name": (
        "from verifiers import GRPOTrainer\nGRPOTrainer(m)",
        "verifiers.GRPOTrainer",
    ),
    "TRL's other trainer": (
        "from trl.experimental.async_grpo import AsyncGRPOTrainer\nAsyncGRPOTrainer(model='a/b')",
        "line 2: AsyncGRPOTrainer of trl.experimental.async_grpo",
    ),
    "8-bit floats": (
        "FastLanguageModel.from_pretrained('a/b', load_in_fp8=True)",
        "line 1: FastLanguageModel.from_pretrained.load_in_fp8=True.*4 or in 16 bits",
    ),
    "a parameter of no Unsloth": (
        "FastModel.get_peft_model(m, finetune_vison_layers=False)",
        "has no parameter finetune_vison_layers.*did you mean 'finetune_vision_layers'",
    ),
    "where vLLM was put": ("GRPOConfig(vllm_device='auto')", "grpo.vllm_device.*leave it out: vLLM shares the GPU"),
    "images in a conversation": (
        "m = AutoModelForImageTextToText.from_pretrained('a/b')\np = [{'type': 'image'}, {'type': 'text', 'text': q}]\n"
        "GRPOTrainer(model=m)",
        "line 2: an image.*images are not trained here",
    ),
    "images in the rows": (
        "def f(row):\n    return row['image'].convert('RGB')\nFastVisionModel.from_pretrained('a/b')\nGRPOTrainer('a/b')",
        "line 2: an image",
    ),
    "too long": ("x = 1\n" * 50_000, "300,000 characters"),
    "too deep": ("x = " + "-" * 50_000 + "1\nGRPOConfig()", "nested too deeply|a script is Python"),
}


@pytest.fixture(scope="module")
def fields():
    return plan.field_names(trainer_classes()[0])


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
    recipe, settings, notes = plan.normalised(pasted.recipe, fields, CPU)
    plan.batch(settings)
    return recipe, settings, [*pasted.notes, *notes]


@pytest.mark.parametrize("name", TRAINED)
def test_every_translation_is_a_line_and_every_line_is_a_translation(fields, name):
    script, lines, expected = TRAINED[name]
    recipe, settings, notes = planned(script, fields)
    assert notes == lines
    found = {**settings, **recipe.lora.model_dump(), **recipe.policy.model_dump(), **recipe.model_dump()}
    assert {key: found[key] for key in expected} == expected
    Recipe.of(recipe.model_dump())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_not_refused_trains_a_step(home, fields, policy_of, name):
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
        assert in_force[key] == recipe.grpo.get(key, plan.DEFAULTS[key])


def for_the_tiny_policy(recipe: Recipe) -> Recipe:
    """The recipe with what the embedded policy and a test's patience need: everything else as it was asked for."""
    grpo = {**recipe.grpo, "max_steps": 1, "report_to": "none"}
    grpo["max_completion_length"] = min(grpo.get("max_completion_length", 96), 24)
    small = PolicyPart()
    policy = recipe.policy.model_copy(update={"name": small.name, "max_seq_length": small.max_seq_length})
    changes = {"policy": policy, "task": "arithmetic", "grpo": grpo}
    changes["max_prompt_length"] = recipe.max_prompt_length and min(recipe.max_prompt_length, 232)
    return recipe.model_copy(update=changes)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_the_right_name(fields, name):
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
    assert any("beta = __import__('os').getpid() cannot be known without running it" in line for line in pasted.notes)


@pytest.mark.parametrize(
    ("script", "grpo"),
    [
        ("LR = 1e-5\nGRPOConfig(learning_rate=LR)", {"learning_rate": 1e-5}),
        ("a = b = 4\nGRPOConfig(num_generations=a * 2, top_p=1 - 0.25)", {"num_generations": 8, "top_p": 0.75}),
        ("c = dict(beta=0.01)\nGRPOConfig(top_p=0.9, **c)", {"top_p": 0.9, "beta": 0.01}),
        ("c = {'beta': -(-0.5)}\nGRPOConfig(**c)", {"beta": 0.5}),
        ("from trl import GRPOConfig as C\nC(beta=0.1)", {"beta": 0.1}),
        ("import trl\ndef main():\n    trl.GRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("!pip install trl\n%cd x\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("```python\nGRPOConfig(beta=0.1)\n```", {"beta": 0.1}),
        ("BETA = 0.3\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("b = 0.1\nb = 0.2\nGRPOConfig(beta=b, top_k=5)\nb = 0.3", {"beta": 0.2, "top_k": 5}),
        ("b = 0.1\nif x:\n    b = 0.2\nGRPOConfig(beta=b, top_k=5)", {"top_k": 5}),
        ("b = 0.1\nb += 0.1\nGRPOConfig(beta=b, top_k=5)", {"top_k": 5}),
        ("for b in x:\n    pass\nGRPOConfig(beta=b, top_k=5)", {"top_k": 5}),
        ("b = 0.1\ndef f(b):\n    GRPOConfig(beta=b, top_k=5)", {"top_k": 5}),
        ("while x:\n    b = 0.1\n    GRPOConfig(beta=b, top_k=5)\n    b = 0.2", {"top_k": 5}),
        ("b, k = 0.1, 5\ndef f():\n    b = 0.2\nGRPOConfig(beta=b, top_k=k)", {"beta": 0.1, "top_k": 5}),
        ("@app.cell\ndef _():\n    b = 0.1\n    return (b,)\n@app.cell\ndef _(b):\n    GRPOConfig(beta=b)",
         {"beta": 0.1}),
        ("%pip install a \\\n    'b==1' \\\n    c\nif colab:\n    !pip install d\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("a = f\"{d[\"q\"]}, {d[\"r\"]}\"\nGRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("    GRPOConfig(beta=0.1)", {"beta": 0.1}),
        ("p.add_argument('--beta', type=float, default=0.1)\np.add_argument('--top_k')\nargs = p.parse_args()\n"
         "GRPOConfig(beta=args.beta, top_k=args.top_k, top_p=0.9)", {"beta": 0.1, "top_p": 0.9}),
        ("p.add_argument('--beta', default=0.1)\nargs = Config()\nGRPOConfig(beta=args.beta, top_p=0.9)", {"top_p": 0.9}),
        ("k = k\nGRPOConfig(beta=k, top_k=5)", {"top_k": 5}),
        ("n = 9\nGRPOConfig(top_k=5, lr_scheduler_type=f'cos{n}')", {"top_k": 5, "lr_scheduler_type": "cos9"}),
        ("GRPOConfig(top_k=5, beta=1 / 0, bf16=is_bfloat16_supported())", {"top_k": 5}),
        ("a = GRPOConfig(beta=0.1)\na.beta = 0.2\na.top_k = 5\na.beta = 0.3", {"beta": 0.3, "top_k": 5}),
        ("a = GRPOConfig(kl_coef=0.1)\na.beta = 0.2", {"beta": 0.2}),
        ("a: GRPOConfig = GRPOConfig(beta=0.1)\na.beta *= 2\na.top_k, a.top_p = 5, 0.9",
         {"beta": 0.2, "top_k": 5, "top_p": 0.9}),
        ("a = GRPOConfig()\nb = a\nb.beta = 0.2\nsetattr(a, 'top_k', 5)", {"beta": 0.2, "top_k": 5}),
        ("a = GRPOConfig(beta=0.1)\na = GRPOConfig(beta=0.1)\na.beta = 0.2\nGRPOTrainer(m, f, a)", {"beta": 0.2}),
        ("t = GRPOTrainer(m, f, GRPOConfig(beta=0.1))\nt.args.beta = 0.2", {"beta": 0.2}),
        ("class A:\n    def f(self):\n        self.a = GRPOConfig(beta=0.1)\n        self.a.beta = 0.2", {"beta": 0.2}),
        ("a = GRPOConfig(beta=0.1)\nif __name__ == '__main__':\n    a.beta = 0.2", {"beta": 0.2}),
        ("a = parse()\na.foo = 1\na = GRPOConfig(beta=0.1)\na.beta = 0.2\na = parse()\na.bar = 1", {"beta": 0.2}),
        ("a = GRPOConfig(beta=0.1)\nb.beta = 0.2\na.c.beta = 0.3\na['beta'] = 0.4", {"beta": 0.1}),
    ],
)  # fmt: skip
def test_values_are_read_where_they_can_be_known(fields, script, grpo):
    found = read_script(script, fields=fields).recipe.grpo
    found.pop("max_completion_length")
    assert found == grpo


def test_a_config_that_a_trainer_names_is_the_one(fields):
    script = f"a = {SMALL}\nb = {MINIMAL}\nGRPOTrainer(model='x/y', args=b)"
    assert read_script(script, fields=fields).recipe.grpo["num_train_epochs"] == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "FastLanguageModel.from_pretrained('a/b', max_lora_rank=16)\nFastLanguageModel.get_peft_model(m, r=32)",
            "line 1: max_lora_rank = 16 is below r = 32",
        ),
        ("FastLanguageModel.from_pretrained('a/b', float8_kv_cache=True)", "float8_kv_cache = True is left out"),
        ("LoraConfig(target_modules='all-linear')", "the seven projections: q_proj"),
        ("GRPOTrainer('a/b', tokenizer=t)", "tokenizer is called processing_class"),
        ("GRPOTrainer('a/b', t)\ntrainer.generate_completions(d[:1])", "line 2: generate_completions is no method"),
        ("FastLanguageModel.get_peft_model(m, r=8, random_state=3407)", "random_state = 3407 becomes seed"),
        (
            "FastLanguageModel.get_peft_model(m, random_state=3407)\nGRPOConfig(seed=1)",
            "random_state = 3407 is left out: the run has one seed, 1",
        ),
        (
            "GRPOTrainer('a/b', reward_funcs=[f, g], args=GRPOConfig(reward_weights=[1.0, 0.5]))",
            "reward_weights = [1.0, 0.5] go by function name here; beside your task: {f: 1.0, g: 0.5}",
        ),
        ("ds = load_dataset('openai/gsm8k', 'main')\nGRPOConfig()", "task = 'gsm8k', which ships"),
        ("ds = load_dataset('a/b')\nGRPOConfig()", "dataset 'a/b' are code, and not read"),
        ("q = BitsAndBytesConfig(load_in_4bit=True)\nAutoModelForCausalLM.from_pretrained('a/b', quantization_config=q)",
         "plain transformers: policy.backend = 'transformers'"),
        ("GRPOConfig('out')", "output_dir = 'out' is left out"),
        ("a = GRPOConfig(learning_rate=1e-5)\na.learning_rate = 5e-5",
         "line 2: a.learning_rate = 5e-05: learning_rate = 5e-05, instead of 1e-05 in GRPOConfig"),
        ("a = GRPOConfig(beta=0.1)\na.beta = f()",
         "line 2: beta = f() cannot be known without running it: left out, and 0.1 stays"),
        ("a = GRPOConfig()\na.beta += 1", "line 2: a.beta += 1 cannot be known without running it: left out"),
        ("a = GRPOConfig()\na.x, a.y = f()", "line 2: x = f() cannot be known"),
        ("a = GRPOConfig()\nif b:\n    a.beta = 0.2", "line 3: a.beta = 0.2 may happen or not, which only running it"),
        ("if b:\n    a = GRPOConfig()\nelse:\n    a.beta = 0.2", "line 4: a.beta = 0.2 stands in another branch"),
        ("a = GRPOConfig()\ndef f(a):\n    a.x = 1", "line 3: a.x = 1 stands in another function or class than the call"),
        ("a = GRPOConfig()\na.b.c = 1", "line 2: a.b.c = 1 is no plain attribute: left out"),
        ("a = GRPOConfig()\nt = GRPOTrainer(m, f, a)\nt.train()\na.beta = 0.2",
         "line 4: a.beta = 0.2 comes after the training in line 3: left out"),
        ("a = GRPOConfig()\na.beta = 0.2\na = GRPOConfig()\nGRPOTrainer(m, f, a)",
         "line 2: a.beta = 0.2 is about the GRPOConfig in line 1: left out"),
        ("c = LoraConfig(r=8)\nc.r = 32", "line 2: c.r = 32: r = 32, instead of 8 in LoraConfig"),
        ("GRPOTrainer('a/b', f, a, d, held_out)", "line 1: eval_dataset = held_out is left out: a run only trains"),
        ("GRPOTrainer('a/b', callbacks=[Mine()])", "line 1: callbacks = [Mine()] is left out: they are code"),
        ("GRPOTrainer('a/b', optimizers=(o, s))", "line 1: optimizers = (o, s) is left out: the optimiser is grpo.optim"),
        ("GRPOTrainer('a/b', tools=[search])", "line 1: tools = [search] is left out"),
        ("GRPOTrainer('a/b', **more)", "line 1: **more cannot be known without running it: left out"),
        ("BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='fp4')",
         "line 1: bnb_4bit_quant_type = 'fp4' is left out: the 4 bits are NF4"),
        ("BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=False)", "bnb_4bit_use_double_quant = False is"),
        ("BitsAndBytesConfig(load_in_4bit=f())", "line 1: load_in_4bit = f() cannot be known"),
        ("AutoModelForCausalLM.from_pretrained('a/b', dtype='bfloat16')\nBitsAndBytesConfig(load_in_4bit=True, "
         "bnb_4bit_compute_dtype=torch.float16)",
         "line 2: bnb_4bit_compute_dtype = 'float16' is left out: a policy computes in one type, 'bfloat16'"),
        ("GRPOConfig(beta=0.1)", "learning_rate = 1e-05 (TRL: 1e-06, for full fine-tuning), max_steps = 100 (TRL: 3 epochs)"),
    ],
)  # fmt: skip
def test_what_is_said_of_single_calls(fields, script, said):
    pasted = read_script(script, fields=fields)
    assert said in str(pasted)


def names_and_backend(script, fields):
    pasted = read_script(script, fields=fields)
    return pasted.recipe.policy.name, pasted.recipe.policy.backend, pasted.named


def test_a_models_name_is_the_last_one_before_it_is_loaded(fields):
    script = (
        "import trl\nname = 'a/old'\nname = 'a/b'\nmodel = LOADER.from_pretrained(name)\n"
        "GRPOTrainer(model=model, peft_config=p)\nname = 'me/trained'\nAutoModelForCausalLM.from_pretrained(name)"
    )
    for loader in ("AutoModelForCausalLM", "Qwen3VLForConditionalGeneration", "AutoModelForImageTextToText"):
        found = read_script(script.replace("LOADER", loader), fields=fields)
        assert (found.recipe.policy.name, found.recipe.policy.backend, found.named) == ("a/b", "transformers", True)
        assert "line 7: AutoModelForCausalLM.from_pretrained is left out: it comes after the training" in found.notes
        sees = [line for line in found.notes if line.startswith(f"line 4: {loader} also reads images: here only text")]
        assert len(sees) == (loader != "AutoModelForCausalLM")
    after = "GRPOTrainer(model='a/b')\nAutoModelForCausalLM.from_pretrained('me/trained')"
    assert names_and_backend(after, fields) == ("a/b", "transformers", True)


def test_an_image_of_docker_is_none_of_a_prompt(fields):
    script = "box = modal.Image.from_registry(cfg['image'])\nmount = {'type': 'image'}\nGRPOTrainer('a/b')"
    found = read_script(script, fields=fields)
    assert found.recipe.policy.name == "a/b"
    assert any(line.startswith("line 1: if this is an image of a prompt, it is left out") for line in found.notes)


def test_a_name_that_only_running_tells_is_said_and_not_denied(fields):
    script = "from trl import GRPOTrainer\nscript_args, model_args = parser.parse()\nGRPOTrainer(model=model_args.path)"
    found = read_script(script, fields=fields)
    assert "the model's name is model_args.path, which only running it tells: policy.name stays 'tiny'" in found.notes
    assert names_and_backend(script, fields) == ("tiny", "transformers", False)
    assert any(line.startswith("Unsloth is not imported, weights as they are stored") for line in found.notes)
    with_unsloth = script.replace("from trl", "import unsloth\nfrom trl")
    assert names_and_backend(with_unsloth, fields) == ("tiny", "unsloth", False)
    assert names_and_backend("GRPOConfig()", fields) == ("tiny", "unsloth", False)
    said = "p.add_argument('--model', '-m', default='a/b')\nargs = p.parse_args()\nGRPOTrainer(model=args.model)"
    assert names_and_backend(said, fields) == ("a/b", "transformers", True)
    line = "options of its command line are taken at their defaults: args.model = 'a/b'"
    assert line in read_script(said, fields=fields).notes


def test_what_the_installed_unsloth_has_is_left_out_with_a_line_or_read(fields):
    script = (
        "m, t = FastVisionModel.from_pretrained('a/b', load_in_16bit=True, offload_embedding=True, load_in_fp8=False,\n"
        "    unsloth_tiled_mlp=False, trust_remote_code=True, fast_inference=False)\n"
        "m = FastVisionModel.get_peft_model(m, r=32, lora_alpha=64, random_state=7, finetune_vision_layers=False,\n"
        "    finetune_language_layers=True, finetune_mlp_modules=False, use_gradient_checkpointing='unsloth', bias='none')\n"
        "GRPOTrainer(model=m)"
    )
    found = read_script(script, fields=fields)
    recipe = found.recipe
    assert (recipe.policy.name, recipe.policy.backend, recipe.policy.load_in_4bit) == ("a/b", "unsloth", False)
    assert (recipe.lora.r, recipe.lora.lora_alpha, recipe.seed) == (32, 64, 7)
    assert recipe.grpo["gradient_checkpointing"] is True
    assert [line for line in found.notes if "left out" in line] == [
        "line 1: offload_embedding = True is left out: a recipe has no field for it",
        "line 1: trust_remote_code = True is left out: code from a model's repository is not run",
        "line 3: finetune_mlp_modules = False is left out: a recipe has no field for it",
    ]
    assert not any("no adapter" in line for line in found.notes)


def test_signatures_are_read_as_the_libraries_have_them():
    from inspect import signature

    import trl
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

    assert tuple(installed(PLACES["GRPOTrainer"])) == tuple(signature(trl.GRPOTrainer.__init__).parameters)[1:]
    assert set(signature(LoraConfig).parameters) <= set(installed(PLACES["LoraConfig"]))
    stored = {name: one.default for name, one in signature(BitsAndBytesConfig).parameters.items() if name != "kwargs"}
    assert installed(PLACES["BitsAndBytesConfig"]) == stored
    unsloth = {**installed(UNSLOTH_LOADER), **installed(UNSLOTH_ADAPTER)}
    assert {"offload_embedding", "load_in_fp8", "finetune_vision_layers", "cache_dir"} <= set(unsloth)
    assert installed((("no_such_library/a.py", "f"), ("trl/no_such_file.py", "f"))) == {}


def test_a_setting_that_stands_in_the_script_is_not_called_missing(fields):
    script = "GRPOConfig(learning_rate=args.lr, max_completion_length=args.length, max_steps=args.steps, output_dir=args.out)"
    notes = read_script(script, fields=fields).notes
    assert "line 1: output_dir = args.out is left out: checkpoints lie in runs/<run_name>/checkpoints" in notes
    assert (
        "could not be read, so the workbench's: learning_rate = 1e-05, max_completion_length = 96, max_steps = 100"
        in notes
    )
    assert not any("not in the script" in line or "is not said" in line for line in notes)


def test_what_asks_for_nothing_needs_no_line(fields):
    script = (
        "q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True, "
        "bnb_4bit_compute_dtype=torch.float16)\na = GRPOConfig(beta=0.1, learning_rate=1e-5, max_steps=5)\na.beta = 0.1\n"
        "GRPOTrainer('a/b', args=a, eval_dataset=None, callbacks=[], optimizers=(None, None), quantization_config=q, "
        "peft_config=p)"
    )
    pasted = read_script(script, fields=fields)
    assert [line for line in pasted.notes if line.startswith("line")] == [
        "line 4: plain transformers: policy.backend = 'transformers'"
    ]
    policy = pasted.recipe.policy
    assert (policy.name, policy.load_in_4bit, policy.dtype) == ("a/b", True, "float16")


def test_four_bits_come_from_where_they_are_asked_for(fields):
    bnb = (
        "q = BitsAndBytesConfig(load_in_4bit=True)\nAutoModelForCausalLM.from_pretrained('a/b', quantization_config=q)"
    )
    assert read_script(bnb, fields=fields).recipe.policy.load_in_4bit is True
    later = "q = BitsAndBytesConfig()\nq.load_in_4bit = True"
    assert read_script(later, fields=fields).recipe.policy.load_in_4bit is True
    assert read_script("BitsAndBytesConfig()", fields=fields).recipe.policy.load_in_4bit is False
    assert read_script("AutoModelForCausalLM.from_pretrained('a/b')", fields=fields).recipe.policy.load_in_4bit is False
    recipe = read_script("LoraConfig(r=4, target_modules='all-linear')", fields=fields).recipe
    assert recipe.lora.target_modules == list(SEVEN_PROJECTIONS)
    assert recipe.lora.r == 4
