"""Sampling completions: the workbench's loop against transformers' `generate` on the same prompts,
in tokens a second.

    uv run python benchmarks/generation.py [--rounds 9]

64 completions of the embedded policy at a time, 8 of each prompt, at most 96 tokens, sampled as TRL
samples them: model in training mode, copies of a prompt side by side, temperature 1, the adapter in
float32. Every round draws the same random numbers, so the arms may be asked for the same tokens.
Both are measured twice in every round (A/A). Arms "without ..." leave one part of the loop out: the
time that it then takes longer is what that part brings.
"""

from __future__ import annotations

import time
from typing import Any

import measuring
from lengthening import lengthened
from measuring import Line, between, ratio

GENERATIONS, SEED = 8, 0
THEIRS, OURS = "generate", "workbench"
CASES = {
    "nf4, prompts of 44 tokens": (True, 0),
    "nf4, prompts of 200 tokens": (True, 200),
    "16 bit, prompts of 44 tokens": (False, 0),
    "16 bit, prompts of 200 tokens": (False, 200),
}


def arms() -> dict[str, Any]:
    """What `generate` is told in each arm, by the arm's name."""
    from workbench.instruments.cpu.generation.decoding import ALL, decoder

    found = {THEIRS: {}, f"{THEIRS} again": {}}
    found |= {name: {"custom_generate": decoder()} for name in (OURS, f"{OURS} again")}
    for part in ALL._fields:
        without = decoder(ALL._replace(**{part: False}))
        found[f"without {part.replace('_', ' ')}"] = {"custom_generate": without}
    return found


def measure(
    in_4bit: bool, prompt_tokens: int, prompts: int, longest: int, rounds: int
) -> dict[str, Any]:
    """All arms on one batch of `prompts` times `GENERATIONS` completions.

    Args:
        prompt_tokens: what prompts are lengthened to; 0: as the task has them.
        longest: tokens of a completion at most.
    """
    import torch

    from workbench.tiny.task import task
    from workbench.training.plan.precision import adapter_in_float32
    from workbench.training.policy import load_policy

    policy = load_policy("tiny", load_in_4bit=in_4bit, max_seq_length=512)
    from transformers import GenerationConfig  # unsloth has to come first

    from workbench.training.sampling import _left_padded

    adapter_in_float32(policy.model)
    rows = lengthened(task(train=prompts, held_out=2).rows, policy.tokenizer, prompt_tokens)
    inputs = _left_padded(
        policy.tokenizer, [row["prompt"] for row in rows for _ in range(GENERATIONS)]
    )
    width = inputs["input_ids"].shape[1]
    asked = GenerationConfig(
        max_new_tokens=longest, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            disable_compile=True,
        pad_token_id=policy.tokenizer.pad_token_id, eos_token_id=policy.tokenizer.eos_token_id,
            use_cache=True,
    )  # fmt: skip
    policy.model.train()
    how, tokens = arms(), {}

    def run(arm: str) -> float:
        torch.manual_seed(SEED)
        started = time.perf_counter()
        with torch.no_grad():
            output = policy.model.generate(**inputs, generation_config=asked, **how[arm])
        seconds = time.perf_counter() - started
        tokens[arm] = output[:, width:]
        return seconds

    for arm in (THEIRS, OURS):
        run(arm)  # warm
    seconds = measuring.in_rounds(list(how), rounds, run)
    ends = tokens[THEIRS] == policy.tokenizer.eos_token_id
    # the end itself is a token, the padding after it is not
    count = int((ends.cumsum(1) - ends.int() == 0).sum())
    return {
        "prompt_tokens": width,
        "completions": len(rows) * GENERATIONS,
        "tokens": count,
        "seconds": seconds,
        "tokens_per_s": {arm: count / min(own) for arm, own in seconds.items()},
        "times_as_fast": {arm: ratio(seconds[THEIRS], own) for arm, own in seconds.items()},
        "a_over_a_generate": ratio(seconds[THEIRS], seconds[f"{THEIRS} again"]),
        "a_over_a_workbench": ratio(seconds[OURS], seconds[f"{OURS} again"]),
        "part_brings": {
            arm: ratio(own, seconds[OURS])
            for arm, own in seconds.items()
            if arm.startswith("without")
        },
        "equal_completions": {
            arm: equal(tokens[THEIRS], own, asked.pad_token_id) for arm, own in tokens.items()
        },
    }


def equal(one: Any, other: Any, padding: int) -> int:
    """Number of completions whose tokens are all the same; [B, T], and the shorter one is
    padded.
    """
    import torch

    width = max(one.shape[1], other.shape[1])
    one, other = (
        torch.nn.functional.pad(each, (0, width - each.shape[1]), value=padding)
        for each in (one, other)
    )
    return int((one == other).all(1).sum())


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=8, help="in a batch")
    parser.add_argument("--longest", type=int, default=96, help="tokens of a completion at most")
    asked = measuring.parse(parser, rounds=1, prompts=2, longest=16)
    stamped, cases, rows, lines = measuring.stamp(), {}, [], []
    with measuring.empty_home():
        for case, (in_4bit, length) in CASES.items():
            measuring.say(case)
            cases[case] = found = measure(
                in_4bit, length, asked.prompts, asked.longest, asked.rounds
            )
            speed, gain = found["tokens_per_s"], found["times_as_fast"][OURS]
            noise, ours = found["a_over_a_generate"], found["a_over_a_workbench"]
            fewest = min(found["equal_completions"].values())
            rows.append(
                [
                    case,
                    f"{speed[THEIRS]:,.0f}",
                    f"{speed[OURS]:,.0f}",
                    f"{gain.of_least:.2f}",
                    between(noise),
                    between(ours),
                    f"{fewest} of {found['completions']}",
                    *(f"{part.of_least:.2f}" for part in found["part_brings"].values()),
                ]
            )
            lines.append(
                Line(
                    f"sampling: {case}",
                    f"{gain.of_least:.2f} times as fast",
                    "`generate`",
                    between(noise),
                )
            )
    header = [
        "case",
        "generate, tokens/s",
        "workbench, tokens/s",
        "times as fast",
        "A/A of generate",
        "A/A of the workbench",
    ]
    header += [
        "equal completions, in every arm",
        *(f"{part.removeprefix('without ')} brings" for part in found["part_brings"]),
    ]
    measuring.save("generation", asked, stamped, lines, (header, rows), {"cases": cases})


if __name__ == "__main__":
    main()
