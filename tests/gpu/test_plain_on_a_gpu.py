"""The plain backend on a GPU: nothing of Unsloth's, and the workbench's generation beside transformers' own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

# In a process of its own: where Unsloth has put its trainer in TRL's place, the plain backend refuses to load.
GREEDY = """
import sys
import torch
from workbench.instruments.cpu.generation import Generation
from workbench.training.policy import load_policy

policy = load_policy("tiny", backend="transformers", load_in_4bit=False, dtype="float32")
model, tokenizer = policy.model, policy.tokenizer
assert model.device.type == "cuda"
torch.manual_seed(0)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.02)
chats = [[{"role": "user", "content": f"What is {7 ** (n % 9)} + {n}?"}] for n in range(25) for _ in range(4)]
text = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
inputs = tokenizer(text, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False,
                   return_token_type_ids=False).to("cuda")
settings = dict(do_sample=False, max_new_tokens=48, pad_token_id=tokenizer.pad_token_id)
with policy.generating(), torch.no_grad():
    theirs = model.generate(**inputs, **settings)
    with Generation(model) as generation:
        ours = model.generate(**inputs, **settings)
found = generation.found()
assert found["by"] == "workbench" and found["calls"]["workbench"] > 0 and not found["calls"]["trl"], found
width = max(theirs.shape[1], ours.shape[1])
def padded(tokens):
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=tokenizer.pad_token_id)
same = (padded(theirs) == padded(ours)).all(dim=1)
assert not [name for name in sys.modules if name.split(".")[0] == "unsloth"]
print("same", int(same.sum()), "of", len(same))
"""

TRAINS = """
import sys
from workbench.recipe import Recipe
from workbench.tiny.task import task
from workbench.training.policy import load_policy
from workbench.training.trainer import train

grpo = dict(max_steps=2, num_generations=8, per_device_train_batch_size=16, max_completion_length=32, learning_rate=1e-3)
recipe = Recipe.of({"run_name": "t", "policy": {"backend": "transformers"}, "grpo": grpo})
run = train(recipe, policy=load_policy("tiny", backend="transformers"), task=task(32, 4), runs=sys.argv[1])
found = run.manifest()
assert found["trainer"].startswith("trl."), found["trainer"]
assert found["policy"]["precision"] == "nf4"
assert found["settings"]["in_force"]["bf16"] or found["settings"]["in_force"]["fp16"]
generation = run.result()["generation"]
assert generation["calls"]["workbench"] > 0, generation
print("by", generation["by"])
"""


def said(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_greedy_tokens_are_those_of_generate():
    assert said(GREEDY) == "same 100 of 100"


def test_nf4_trains_with_trls_own_trainer_and_the_workbenchs_generation(tmp_path):
    assert said(TRAINS, str(tmp_path)) == "by workbench"
