"""What each setting does, tried: with TRL's own trainer on the embedded policy, and with transformers' own `generate`."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

TRIED = json.loads(Path(__file__).with_name("settings_tried.json").read_text(encoding="utf-8"))
BASE: dict[str, Any] = {
    "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16,
    "learning_rate": 1e-3, "gradient_checkpointing": False, "logging_steps": 1, "lr_scheduler_type": "constant",
    "report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "max_grad_norm": 1.0,
    "beta": 0.0, "bf16": False, "optim": "adamw_torch", "seed": 0,
}  # fmt: skip
SAMPLED: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
                           "repetition_penalty": 1.0, "disable_compile": True}  # fmt: skip


def length_reward(completions, **_):
    return [float(len(turn[0]["content"]) % 7) for turn in completions]


def one_reward(completions, **_):
    return [float("1" in turn[0]["content"]) for turn in completions]


def trained(**grpo: Any) -> tuple[str, list[dict[str, Any]]]:
    """(sum of the adapter, what TRL logged but for times) after two steps with these settings."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed
    from trl import GRPOConfig, GRPOTrainer

    import workbench as wb
    from workbench.tiny import MODEL_DIR

    rows = [{"prompt": row["prompt"]} for row in list(wb.load_task("arithmetic").rows)[:8]]
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        set_seed(0)
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(MODEL_DIR),
            processing_class=AutoTokenizer.from_pretrained(MODEL_DIR),
            reward_funcs=[length_reward, one_reward],
            args=GRPOConfig(**{**BASE, "output_dir": folder, **copy.deepcopy(grpo)}),
            train_dataset=Dataset.from_list(rows),
            peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    summed = hashlib.sha256(b"".join(weights[name].detach().float().numpy().tobytes() for name in sorted(weights)))
    timed = ("time", "second", "memory", "mem_")
    logs = [
        {key: each for key, each in row.items() if not any(word in key for word in timed)} for row in trainer.state.log_history
    ]
    return summed.hexdigest(), logs


def changed(before: tuple[str, list[Any]], **grpo: Any) -> str:
    """What these settings change against `before`: weights, logs, nothing, or how they are refused."""
    try:
        now = trained(**grpo)
    except Exception as error:
        return f"{type(error).__name__}"
    return (
        " and ".join(word for word, one, other in zip(("weights", "logs"), before, now, strict=True) if one != other) or "nothing"
    )


def sampled(policy: Any, **given: Any) -> str | list[list[int]]:
    """The ids that the policy samples under these settings of a GenerationConfig, or how they are refused."""
    import torch
    from transformers import GenerationConfig

    import workbench as wb
    from workbench.data.rendering import prompt_text

    tokenizer = policy.tokenizer
    prompts = [prompt_text(row["prompt"], tokenizer) for row in list(wb.load_task("arithmetic").rows)[:4] for _ in range(4)]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False,
                       return_token_type_ids=False)  # fmt: skip
    ends = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": [tokenizer.eos_token_id],
    }
    torch.manual_seed(0)
    with policy.generating() as model, torch.no_grad():
        try:
            ids = model.generate(**inputs, generation_config=GenerationConfig(**{**SAMPLED, **ends, **given}))
        except Exception as error:
            return type(error).__name__
    return ids.tolist() if isinstance(ids, torch.Tensor) else type(ids).__name__
