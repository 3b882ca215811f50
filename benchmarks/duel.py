"""Does a duel call a better reward, and leave two equal ones alone?

    uv run python benchmarks/duel.py --home /path/of/a/folder        # hours; goes on where it was
    uv run python benchmarks/duel.py --home FOLDER --worker 0 --workers 2   # one of two at a time

Duels of at most 6 pairs on the embedded policy, of runs of 4 steps of 32 completions, and 48
held-out prompts. A/A: the shipped five rewards against themselves, with the training prompts in
reverse order, so that the runs of a pair differ by luck alone (with nothing changed they would be
the same to the bit). Planted: the shipped five against a coin, a reward that is a hash of the
completion. Pairs of one kind are independent and exchangeable, so runs are trained once, a seed at
a time, and duel number i has the seeds 6 i + 1 to 6 i + 6: within a kind every pair is used once.
The runs of the shipped five serve both kinds. A run measures its held-out prompts at its beginning
and end alone, which changes nothing that is trained. Results are kept run by run in --home.

Then two real duels, by `wb.inspection.duel` itself: correctness alone against the shipped five, and
one point for a right answer against tiers of partial credit, each at the command's own default
budget.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from measuring import Line

PAIRS, STEPS, COMPLETIONS, PROMPTS = 6, 4, 32, 48
KINDS = {"A/A": ("five", "reversed"), "planted": ("coin", "five")}
REAL = (("correctness", "five"), ("binary", "tiered"))
TASK = '''"""Of benchmarks/duel.py."""

import dataclasses
import hashlib

import workbench as wb

shipped = wb.load_task("arithmetic")


@wb.rewards.max_score(1.0)
def coin_reward(completions, **columns):
    texts = [wb.rewards.completion_text(own).encode() for own in completions]
    return [float(hashlib.sha256(text).digest()[0] & 1) for text in texts]


@wb.rewards.max_score(1.0)
def tiered_reward(completions, answer, **columns):
    def tier(completion, right):
        given = wb.rewards.extract_answer(wb.rewards.completion_text(completion)) or ""
        if given.strip() == right:
            return 1.0
        try:
            off = abs(float(given) - float(right))
        except ValueError:
            return 0.0
        return 0.5 if off <= 1 else 0.25 if off <= 10 else 0.1

    return [tier(own, right) for own, right in zip(completions, answer)]


task = dataclasses.replace(
    shipped,
    rows=list(shipped.rows)[::STEP],
    reward_funcs=[*shipped.reward_funcs, coin_reward, tiered_reward],
    reward_weights=[WEIGHTS],
)
'''
# weights of the shipped five, of the coin and of the tiers, and the order of the training prompts
ARMS = {
    "five": ("1, 1, 1, 1, 1, 0, 0", "1"),
    "reversed": ("1, 1, 1, 1, 1, 0, 0", "-1"),
    "coin": ("0, 0, 0, 0, 0, 1, 0", "1"),
    "correctness": ("1, 0, 0, 0, 0, 0, 0", "1"),
    "binary": ("0.5, 1, 0, 0, 0, 0, 0", "1"),  # correctness_reward pays 2
    "tiered": ("0, 1, 0, 0, 0, 0, 1", "1"),
}


def recipe_of(arm: str, home: Path, **over: Any) -> Any:
    """The recipe of an arm, whose task is a file under `home`."""
    from workbench.recipe import Recipe

    weights, step = ARMS[arm]
    file = home / "tasks" / f"{arm}.py"
    file.parent.mkdir(exist_ok=True)
    text = TASK.replace("[WEIGHTS]", f"[{weights}]").replace("STEP", step)
    if not file.is_file():  # another worker may be reading it
        file.write_text(text, encoding="utf-8")
    grpo = {
        "num_generations": 8,
        "per_device_train_batch_size": COMPLETIONS,
        "max_completion_length": 64,
        "learning_rate": 4e-3,
        "beta": 0.0,
    }
    policy = {"load_in_4bit": False, "backend": "transformers"}
    content = {"run_name": arm, "task": str(file), "policy": policy, "eval_prompts": PROMPTS}
    return Recipe.of({**content, "grpo": grpo, **over})


def trained(arm: str, seed: int, home: Path) -> dict[str, Any]:
    """One run: a 0 or a 1 for each held-out prompt, of the base and at the end."""
    from workbench.run.held_out import held_out
    from workbench.training.trainer import train

    began = time.monotonic()
    recipe = recipe_of(arm, home)
    grpo = {**recipe.grpo, "max_steps": STEPS}
    recipe = recipe.model_copy(update={"grpo": grpo, "seed": seed, "eval_every": STEPS})
    with contextlib.redirect_stdout(io.StringIO()):
        run = train(recipe, watchers=[], runs=home / f"runs-{os.getpid()}")
    base, *_, last = held_out(run.events())
    found = {"arm": arm, "seed": seed, "base": base["right"], "solved": last["right"]}
    shutil.rmtree(run.path)
    return found | {"seconds": round(time.monotonic() - began, 1)}


class Bank:
    """Runs by arm and seed, trained when they are first asked for."""

    def __init__(self, home: Path, worker: int, minutes: float) -> None:
        from workbench.base.workspace import read_lines

        self.home, self.file = home, home / f"bank-{worker}.jsonl"
        lines = [line for file in home.glob("bank-*.jsonl") for line in read_lines(file)]
        self.runs = {(line["arm"], line["seed"]): line for line in lines}
        self.until = time.monotonic() + 60 * minutes

    def solved(self, arm: str, seed: int) -> np.ndarray | None:
        """[P] of 0 and 1; None: not there, and time is up."""
        from workbench.base.workspace import append_line

        if (arm, seed) not in self.runs:
            if time.monotonic() > self.until:
                return None
            self.runs[arm, seed] = trained(arm, seed, self.home)
            append_line(self.file, self.runs[arm, seed])
        return np.array([float(each) for each in self.runs[arm, seed]["solved"]])


def fought(kind: str, number: int, bank: Bank) -> dict[str, Any] | None:
    """One duel of the bank's runs, as `wb.inspection.duel` fights it; None: a run is missing."""
    from workbench.instruments.duel.sequential import compared

    one, other = KINDS[kind]
    differences: list[np.ndarray] = []
    for pair in range(PAIRS):
        seed = PAIRS * number + pair + 1
        sides = [bank.solved(arm, seed) for arm in (one, other)]
        if any(side is None for side in sides):
            return None
        differences.append(sides[1] - sides[0])
        [look] = compared([np.array(differences)], PAIRS)
        if look.called:
            break
    rates = [round(float(own.mean()), 4) for own in differences]
    told = {"called": look.called, "pairs": len(rates), "mean": look.mean, "p": look.p}
    return {"kind": kind, "number": number, **told, "differences": rates}


def real(one: str, other: str, home: Path) -> dict[str, Any]:
    """A real duel by `wb.inspection.duel`, as the command fights it."""
    import workbench as wb

    grpo = {"per_device_train_batch_size": 64, "max_completion_length": 96}
    recipes = []
    for arm in (one, other):
        recipe = recipe_of(arm, home, eval_prompts=64)
        grpo = {**recipe.grpo, **grpo, "learning_rate": 1e-3}
        recipes.append(recipe.model_copy(update={"grpo": grpo}))
    with contextlib.redirect_stdout(io.StringIO()):
        return wb.inspection.duel(
            *recipes, runs=home / "real", on_pair=lambda state: measuring.say(str(state))
        ).found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--duels", type=int, default=100, help="of each kind")
    parser.add_argument("--minutes", type=float, default=600, help="train no run after so many")
    parser.add_argument("--home", type=Path, help="where results are kept meanwhile")
    parser.add_argument("--worker", type=int, default=0, help="which of --workers this is")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the duels")
    parser.add_argument("--no-real", action="store_true", help="leave the real duels out")
    asked = measuring.parse(parser, duels=1, no_real=True)
    stamped = measuring.stamp()
    with contextlib.ExitStack() as entered:
        home = asked.home or entered.enter_context(measuring.empty_home())
        home.mkdir(parents=True, exist_ok=True)
        os.environ |= {"WORKBENCH_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        bank, found = Bank(home, asked.worker, asked.minutes), []
        for number in range(asked.duels):
            mine = number % asked.workers == asked.worker
            for kind in KINDS:
                if mine and (duel := fought(kind, number, bank)):
                    found.append(duel)
                    measuring.say(str(duel))
        reals = [] if asked.no_real else [real(*pair, home) for pair in REAL]
    content = {"duels": found, "real": [{**own, "runs": Path(own["runs"]).name} for own in reals]}
    for name in ("home", "worker", "workers", "minutes", "no_real"):
        delattr(asked, name)
    if asked.out or asked.quick:
        measuring.save("duel", asked, stamped, *report(**content))


def report(
    duels: list[dict[str, Any]], real: list[dict[str, Any]]
) -> tuple[list[Line], tuple[list[str], list[list[str]]], dict[str, Any], list[str]]:
    """Lines, table, numbers and notes of a result, from what was kept of each duel."""
    from workbench.health.trends import Z_95, share

    lines, rows, notes = [], [], []
    for kind in KINDS:
        own = [duel for duel in duels if duel["kind"] == kind]
        if not own:
            continue
        called = sum(duel["called"] for duel in own)
        wrong = sum(duel["called"] and duel["mean"] < 0 for duel in own)
        interval = share(called, len(own), Z_95)
        saved = 1 - sum(duel["pairs"] for duel in own) / (PAIRS * len(own))
        spread = np.mean([np.std(d["differences"], ddof=1) for d in own if d["pairs"] > 2])
        mean = np.mean([each for duel in own for each in duel["differences"]])
        against = {"A/A": "at most 5 % should be", "planted": "at least 90 % should be"}[kind]
        lines.append(
            Line(
                f"{kind} duels called, of {len(own)}",
                str(called),
                against,
                f"95 % interval {100 * interval.low:.0f} to {100 * interval.high:.0f} %",
            )
        )
        rows.append(
            [
                kind,
                str(len(own)),
                str(called),
                str(wrong),
                f"{100 * mean:+.0f} points",
                f"{100 * spread:.0f} points",
                f"{saved:.0%}",
            ]
        )
    header = ["kind", "duels", "called", "called for the worse", "mean difference"]
    header += ["spread of a pair", "budget saved"]
    notes += [
        f"Real: {own['words'].splitlines()[0]} ({own['completions']:,} completions)."
        for own in real
    ]
    return lines, (header, rows), {"duels": duels, "real": real}, notes


if __name__ == "__main__":
    main()
