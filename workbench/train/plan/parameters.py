"""Parameters of the calls that a script makes, and what becomes of each: a place in the recipe, a reason, or a refusal.

A meaning that begins with `-` leaves the parameter out, with the reason; one that begins with `!` refuses it, with the rule.
"""

from __future__ import annotations

from workbench.train.plan.names import LEFT_OUT

EIGHT_BITS = "!the frozen weights are kept in 4 or in 16 bits (policy.load_in_4bit)"
# Calls that are understood -> what a keyword of theirs is: a place in the recipe, or a reason to leave it out.
UNSLOTH_LOADER = {
    "model_name": "policy.name",
    "max_seq_length": "policy.max_seq_length",
    "dtype": "policy.dtype",
    "torch_dtype": "policy.dtype",
    "load_in_4bit": "policy.load_in_4bit",
    "random_state": "seed",
    "token": "-: set HF_TOKEN, which stays out of recipes",
    "device_map": f"-: {LEFT_OUT['device_map']}",
    "attn_implementation": f"-: {LEFT_OUT['attn_implementation']}",
    "gpu_memory_utilization": "policy.gpu_memory_utilization",
    "max_lora_rank": f"-: {LEFT_OUT['max_lora_rank']}",
    "fast_inference": "policy.fast_inference",
    "float8_kv_cache": "-: vLLM keeps its keys and values in 16 bits",
    "disable_log_stats": "-: it is how vLLM is started",
    "unsloth_vllm_standby": "-: vLLM keeps its memory while the policy trains",
    "load_in_8bit": EIGHT_BITS,
    "full_finetuning": "!an adapter is trained (recipe field lora)",
    "use_gradient_checkpointing": "grpo.gradient_checkpointing",
    "trust_remote_code": "!code from a model's repository is not run",
    "use_exact_model_name": "-: the name is used as it stands",
}
ADAPTER = {
    "r": "lora.r",
    "lora_alpha": "lora.lora_alpha",
    "lora_dropout": "lora.lora_dropout",
    "target_modules": "lora.target_modules",
    "random_state": "seed",
    "task_type": "-: the adapter is always one of a causal language model",
    "bias": "-: an adapter has no biases",
    "inference_mode": "-: the adapter is trained",
    "use_gradient_checkpointing": "grpo.gradient_checkpointing",
    "max_seq_length": "policy.max_seq_length",
    "use_rslora": "!recipe field lora has r, lora_alpha, lora_dropout and target_modules",
    "use_dora": "!recipe field lora has r, lora_alpha, lora_dropout and target_modules",
    "loftq_config": "-: the adapter begins at zero",
    "init_lora_weights": "-: the adapter begins at zero",
    "modules_to_save": "!only an adapter is trained (lora.target_modules)",
    "layers_to_transform": "!recipe field lora has r, lora_alpha, lora_dropout and target_modules",
}
TRANSFORMERS_LOADER = {
    "pretrained_model_name_or_path": "policy.name",
    "dtype": "policy.dtype",
    "torch_dtype": "policy.dtype",
    "load_in_4bit": "policy.load_in_4bit",
    "quantization_config": "-: policy.load_in_4bit says it",
    "attn_implementation": f"-: {LEFT_OUT['attn_implementation']}",
    "device_map": f"-: {LEFT_OUT['device_map']}",
    "low_cpu_mem_usage": "-: it is how models are loaded",
    "use_cache": "-: generation always uses its cache",
    "token": "-: set HF_TOKEN, which stays out of recipes",
    "load_in_8bit": EIGHT_BITS,
    "trust_remote_code": "!code from a model's repository is not run",
    "revision": "!a policy is a hub name or a folder; download that revision, and name its folder",
}
QUANTIZATION = {
    "load_in_4bit": "policy.load_in_4bit",
    "load_in_8bit": EIGHT_BITS,
    "bnb_4bit_compute_dtype": "policy.dtype",
    "bnb_4bit_quant_type": "-: the 4 bits are NF4",
    "bnb_4bit_use_double_quant": "-: the 4 bits are always quantised twice, which changes memory and next to nothing else",
    "bnb_4bit_quant_storage": "-: how the 4 bits are packed changes no number",
    "llm_int8_threshold": "-: only 8 bits read it",
    "llm_int8_skip_modules": "!which layers are kept in 4 bits is the library's choice",
    "llm_int8_enable_fp32_cpu_offload": "-: a policy is loaded whole on the one device",
    "llm_int8_has_fp16_weight": "-: only 8 bits read it",
}
# What is asked for anyway, and so needs no line.
AS_IT_IS = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
TRAINER_ALIASES = {
    "reward_function": "reward_funcs",
    "reward_functions": "reward_funcs",
    "reward_func": "reward_funcs",
    "tokenizer": "processing_class",
    "config": "args",
    "training_args": "args",
    "dataset": "train_dataset",
}
# The trainer's parameters, in their order -> why one is left out; empty: it is read, or the workbench's own words are about it.
TRAINER = {
    "model": "",
    "reward_funcs": "",
    "args": "",
    "train_dataset": "",
    "eval_dataset": "a run only trains; `workbench probe` and notebook 04 score a policy's completions to other prompts",
    "processing_class": "",
    "reward_processing_classes": "reward functions are the task's, and get words, not tokens",
    "callbacks": "they are code; a run records, watches its health and saves by itself",
    "optimizers": "the optimiser is grpo.optim, with grpo.learning_rate and grpo.lr_scheduler_type",
    "quantization_config": "",
    "peft_config": "",
    "tools": "a completion is one answer, without tools",
    "rollout_func": "completions are generated by the trainer itself",
    "environment_factory": "a completion is one answer, without an environment",
}
