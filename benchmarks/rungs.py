"""Is the rung that is advised the best one? Twelve made policies, every rung tried on each.

    uv run python benchmarks/rungs.py --home /path/of/a/folder     # about an hour; resumes

A made policy is the embedded one on questions that it answers rightly 0 to 98 % of the time, in a
format that it knows (the tags it was taught) or does not (its working in the open, or all on one
line); where the base is not so, fine-tuning on reference completions made it so, and every
rung begins from that adapter.

A rung has one budget of completions, and a warm start or expert iteration pays for what it samples:
what is left is GRPO's. Demonstrations sample nothing and cost the writing of 256. What a rung
gained is measured on held-out prompts, paired by prompt; stop gains and costs nothing. The best
rung is the one that gained most of those that need no written answers; where none of them gained
ten points, it is demonstrations if those did, and else stop. The advice is asked before, of 256
completions of training prompts, as notebook 01 measures them, for the same budget. Its thresholds
were set after a first look at these results, so they are no test of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import numpy as np
from measuring import Line

BUDGET, TOGETHER, GENERATIONS = 2560, 64, 8
WRITTEN, EPOCHS = 256, 8  # demonstrations
PROMPTS, SAMPLES = 64, 4  # held out, and completions of each
ASKED, TRIES = 32, 8  # training prompts that the advice is asked of, and completions of each
RUNGS = ("stop", "demonstrations", "warm start", "expert iteration", "GRPO")
FREE = RUNGS[2:]  # those that need no written answers


class Made(NamedTuple):
    """A made policy: its questions, the format that pays, and what the base was fine-tuned on."""

    questions: str
    form: str
    samples: int = 0  # reference completions
    epochs: int = 1
    rate: float = 1e-3


MADE = {
    "0 %, format known": Made("product", "tags"),
    "0.5 %, format known": Made("plus", "tags"),
    "7 %, format known": Made("add", "tags"),
    "25 %, format known": Made("sum", "tags"),
    "98 %, format known": Made("sum", "tags", 384, 8),
    "0 %, format unknown": Made("sum", "line"),
    "0.2 %, format unknown": Made("sum", "open"),
    "2 %, format unknown": Made("sum", "open", 32, 2),
    "6 %, format unknown": Made("sum", "open", 48, 2),
    "30 %, format unknown": Made("sum", "open", 128, 3),
    "98 %, format unknown": Made("sum", "open", 384, 8),
    "98 % and 0 %, half each": Made("sum or product", "tags", 384, 8),
}
WORDS = {
    "sum": "What is {} + {}?",
    "add": "Add {} and {}.",
    "plus": "{} plus {} makes",
    "product": "What is {} * {}?",
}


def working_of(kind: str, a: int, b: int) -> tuple[str, str]:
    """(the working, the answer) of a question, as the embedded policy writes it."""
    if kind == "product":
        return f"{a}*{b}={a * b}", str(a * b)
    ones = a % 10 + b % 10
    carry = "+1" if ones > 9 else ""
    tens = a // 10 + b // 10 + (ones > 9)
    return f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carry}={tens}", str(a + b)


def written(row: dict[str, Any], form: str) -> str:
    """The reference completion of a row in a format."""
    working, answer = row["working"], row["answer"]
    return {
        "tags": f"<reasoning>\n{working}\n</reasoning>\n<answer>\n{answer}\n</answer>",
        "open": f"{working}\n<answer>\n{answer}\n</answer>",
        "line": f"{working}<answer>{answer}</answer>",
    }[form]


PAYS = {
    "tags": r"<reasoning>\n.+\n</reasoning>\n<answer>\n(\d+)\n</answer>\s*",
    "open": r"[^<]*=[^<]*<answer>\s*(\d+)\s*</answer>\s*",
    "line": r"[^<\n]*=[^<\n]*<answer>(\d+)</answer>",
}


def task_of(made: Made, kinds: list[str] | None = None, seed: int = 0) -> Any:
    """Its task, whose only reward pays 1 for a right answer in the format, and nothing else."""
    import workbench as wb
    from workbench.data.prompts import SYSTEM_PROMPT, to_messages

    kinds = kinds or made.questions.split(" or ")
    rng, rows = random.Random(f"rungs {seed}"), []
    drawn = sorted({(rng.randrange(100), rng.randrange(100)) for _ in range(1200)})
    rng.shuffle(drawn)
    for number, (a, b) in enumerate(drawn):
        kind = kinds[number % len(kinds)]
        if kind == "product":
            a, b = a % 10, b  # of one digit and two: 1,000 of them
        working, answer = working_of(kind, a, b)
        asked = to_messages(WORDS[kind].format(a, b), SYSTEM_PROMPT)
        rows.append({"prompt": asked, "answer": answer, "working": working})
    distinct = list({json.dumps(row["prompt"]): row for row in rows}.values())
    pattern = re.compile(PAYS[made.form], re.DOTALL)

    @wb.rewards.max_score(1.0)
    def right_reward(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
        texts = [wb.rewards.completion_text(each) for each in completions]
        found = [pattern.fullmatch(text) for text in texts]
        return [float(bool(one) and one[1] == own) for one, own in zip(found, answer, strict=True)]

    return wb.Task(
        "made",
        distinct[PROMPTS:],
        [right_reward],
        held_out=distinct[:PROMPTS],
        right_by="right_reward",
        ideal=lambda row: written(row, made.form),
    )


def recipe_of(name: str, seed: int, **over: Any) -> Any:
    from workbench.recipe import Recipe

    grpo = {
        "max_steps": 1,
        "num_generations": GENERATIONS,
        "per_device_train_batch_size": TOGETHER,
        "max_completion_length": 64,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
    }
    policy = {
        "load_in_4bit": False,
        "backend": "transformers",
        "adapter": over.pop("adapter", None),
    }
    content = {"run_name": name, "seed": seed, "policy": policy, "grpo": grpo, **over}
    return Recipe.of(content)


def measured(task: Any, adapter: str | None, rows: list[Any], samples: int) -> np.ndarray:
    """[P, G] of 0 and 1: which completions of the rows are right."""
    import workbench as wb
    from workbench.rewards.suite import RewardSuite
    from workbench.training.sampling import scored_groups

    policy = wb.load_policy(recipe_of("measured", 0, adapter=adapter))
    how = {"max_completion_length": 64, "temperature": 1.0, "seed": 7, "batch_size": 256}
    with contextlib.closing(RewardSuite(task, samples)) as suite:
        groups = scored_groups(policy, task, rows, suite, samples, **how)
    return np.array([[float(each["right"]) for each in group] for group in groups])


def begun(made: Made, home: Path) -> str | None:
    """The adapter that its rungs begin from; None: the base."""
    import workbench as wb

    if not made.samples:
        return None
    folder = home / "made" / re.sub(r"\W+", "_", str(made))
    if not (folder / "checkpoints" / "final").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        kinds = ["sum"]  # of two kinds one is taught
        warm = {"samples": made.samples, "epochs": made.epochs, "learning_rate": made.rate}
        warm |= {"source": "reference"}
        recipe = recipe_of(folder.name, 0, warm_start=warm)
        recipe.grpo["learning_rate"] = 1e-9
        wb.train(recipe, task=task_of(made, kinds, seed=1), runs=folder.parent, watchers=[])
    return str(folder / "checkpoints" / "final")


def tried(made: Made, rung: str, seed: int, home: Path) -> dict[str, Any]:
    """One rung on one made policy: what its held-out completions became, and what it sampled."""
    import workbench as wb
    from workbench.base.errors import RunError

    task, adapter = task_of(made), begun(made, home)
    rows = list(task.held_out)
    if rung == "stop":
        return {"right": measured(task, adapter, rows, SAMPLES).tolist(), "sampled": 0}
    runs = home / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    warm: dict[str, Any] | None = {"samples": 32, "tries": BUDGET // 32}
    if rung == "demonstrations":
        warm = {"samples": WRITTEN, "source": "reference", "epochs": EPOCHS}
    elif rung == "expert iteration":
        warm["rounds"] = 3
    else:
        warm = warm if rung == "warm start" else None
    recipe = recipe_of("tried", seed, adapter=adapter, warm_start=warm)
    if rung == "demonstrations":
        recipe.grpo["learning_rate"] = 1e-9
        recipe.warm_start.learning_rate = 1e-3
    try:
        run = wb.train(recipe, task=task, runs=runs, watchers=[])
    except RunError as error:  # too few right completions were found for the budget
        base = measured(task, adapter, rows, SAMPLES)
        return {"right": base.tolist(), "sampled": BUDGET, "failed": str(error)}
    tries = (run.manifest().get("warm_start") or {}).get("tries", 0)
    if rung == "demonstrations":
        tries, left = 0, 0
    else:
        left = (BUDGET - tries) // TOGETHER - 1
    if left > 0:
        run = wb.continue_run(run, task=task, steps=left, watchers=[])
    right = measured(task, str(run.checkpoints / "final"), rows, SAMPLES)
    return {"right": right.tolist(), "sampled": tries + (left + 1) * TOGETHER}


def advised(made: Made, home: Path) -> dict[str, Any]:
    """What the instrument says of 256 completions of training prompts."""
    from workbench.data.difficulty import Solved
    from workbench.health.rung import which_rung

    task = task_of(made)
    right = measured(task, begun(made, home), list(task.rows)[:ASKED], TRIES)
    solved = [Solved(int(each.sum()), TRIES, TRIES) for each in right]
    rung = which_rung(solved, num_generations=GENERATIONS, budget=BUDGET, ideal=True)
    return {"rung": rung.name, "right": right.sum(axis=1).tolist(), "words": rung.words}


def best_of(
    found: dict[str, list[np.ndarray]],
) -> tuple[str, dict[str, tuple[float, float, float]]]:
    """(the best rung, rung -> its gain with the 95 % interval), from what each rung's seeds left
    right of each prompt: [P, 1].
    """
    from workbench.health.trends import GAINED
    from workbench.inspection.statistics import share_gain

    base = found["stop"][0]
    gains = {}
    for rung, seeds in found.items():
        mean = np.mean([each.mean(axis=1) for each in seeds], axis=0)[:, None]
        gains[rung] = share_gain(base, mean) if rung != "stop" else (0.0, 0.0, 0.0)
    free = max(FREE, key=lambda rung: gains[rung][0])
    if gains[free][0] >= GAINED:
        return free, gains
    return ("demonstrations" if gains["demonstrations"][0] >= GAINED else "stop"), gains


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--home", type=Path, help="where results are kept meanwhile")
    parser.add_argument("--only", nargs="*", help="made policies, by a part of their names")
    asked = measuring.parse(parser, seeds=1, only=["98 %, format known"])
    stamped, content = measuring.stamp(), {}
    with measuring.empty_home() as empty:
        home = asked.home or empty
        kept = home / "rungs.jsonl"
        home.mkdir(parents=True, exist_ok=True)
        known = {}
        for line in kept.read_text().splitlines() if kept.is_file() else []:
            known |= json.loads(line)

        def once(make: Callable[..., dict[str, Any]], key: str, *given: Any) -> dict[str, Any]:
            if key not in known:
                with contextlib.redirect_stdout(io.StringIO()):
                    known[key] = make(*given)
                with kept.open("a") as file:
                    file.write(json.dumps({key: known[key]}) + "\n")
            return known[key]

        for name, made in MADE.items():
            if asked.only and not any(part in name for part in asked.only):
                continue
            found = {}
            for rung in RUNGS:
                seeds = 1 if rung == "stop" else asked.seeds
                cells = [
                    once(tried, f"{name}|{rung}|{seed}", made, rung, seed, home)
                    for seed in range(seeds)
                ]
                found[rung] = [np.mean(cell["right"], axis=1, keepdims=True) for cell in cells]
                measuring.say(f"{name}: {rung} {np.mean(found[rung]):.1%}")
            content[name] = {
                rung: [own[:, 0].tolist() for own in seeds] for rung, seeds in found.items()
            }
            content[name]["advised"] = advised(made, home)
            measuring.say(
                f"{name}: best {best_of(found)[0]}, advised {content[name]['advised']['rung']}"
            )
    if not content:
        parser.error(f"--only {' '.join(asked.only)}: no such made policy")
    delattr(asked, "home")
    measuring.save("rungs", asked, stamped, *report(content))


def report(
    made: dict[str, Any],
) -> tuple[list[Line], tuple[list[str], list[list[str]]], dict[str, Any], list[str]]:
    """Lines, table, numbers and notes of a result."""
    from workbench.health.trends import GAINED

    rows, good, by_gain = [], 0, 0
    for name, own in made.items():
        found = {rung: [np.array(each)[:, None] for each in own[rung]] for rung in RUNGS}
        best, gains = best_of(found)
        rung = own["advised"]["rung"]
        within = (
            rung in gains and gains[rung][2] >= gains[best][0] and (best in FREE) == (rung in FREE)
        )
        good += rung == best or within
        most = max(gain[0] for gain in gains.values())
        by_gain += gains[rung][2] >= most and (rung != "stop" or most < GAINED)
        shares = [f"{np.mean(found[each]):.0%}" for each in RUNGS]
        rows.append(
            [name, *shares, best, rung, "" if rung == best else "within" if within else "no"]
        )
    lines = [
        Line(
            f"made policies whose advised rung was the best or within its interval, of {len(made)}",
            str(good),
            "at least 10 of 12 should be",
            "",
        )
    ]
    header = ["made policy", *RUNGS, "best", "advised", "else"]
    notes = [
        "Best: of the rungs that need no written answers, if one gained ten points. Ranked by gain"
        f" alone, 256 written answers counted like any other rung, the advice is the best or within"
        f" its interval in {by_gain} of {len(made)}."
    ]
    return lines, (header, rows), {"made": made}, notes


if __name__ == "__main__":
    main()
