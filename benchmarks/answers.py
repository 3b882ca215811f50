"""Comparing answers against math-verify doing the same: pairs a second, on answers that are mostly
integers.

    uv run python benchmarks/answers.py [--pairs 2000]

Each arm runs in a process of its own, in rotating order, on the same pairs; the workbench's arm
runs twice in each round, and the ratio of those two is the noise (A/A). The arms must agree on
every verdict. Both begin warm: math-verify is imported (and the worker started) before the clock,
and what that took is reported beside it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import measuring
from measuring import Line, between, ratio

ARMS = ("workbench", "workbench again", "math-verify")
GROUP = 8  # completions of a prompt
Pair = tuple[str, str]


class Mix(NamedTuple):
    """Shares of the kinds of answer, and how many completions share a prompt."""

    shares: dict[str, float]
    group: int = GROUP


MIXES = {
    "mostly integers": Mix({"integers": 0.9, "numbers": 0.08, "formulas": 0.02}),
    "mostly integers, no groups": Mix(
        {"integers": 0.9, "numbers": 0.08, "formulas": 0.02}, group=1
    ),
    "with 10 % formulas": Mix({"integers": 0.9, "formulas": 0.1}),
    "integers": Mix({"integers": 1.0}),
    "numbers": Mix({"numbers": 1.0}),
    "formulas": Mix({"formulas": 1.0}),
    "formulas, no groups": Mix({"formulas": 1.0}, group=1),
}
# Two spellings of a value: a right answer is the first; what is given is the second in one case of
# four.
KINDS: dict[str, tuple[Callable[[int], tuple[str, str]], ...]] = {
    "integers": (lambda n: (str(n), str(n)),),
    "numbers": (
        lambda n: (str(1000 * n), f"{1000 * n:,}"),
        lambda n: (str(n), f"{n}.00"),
        lambda n: (str(n), f"${n}"),
        lambda n: (f"{n / 100}", f"{n}%"),
        lambda n: (rf"$\frac{{{n}}}{{7}}$", f"{n}/7"),
    ),
    "formulas": (
        lambda n: (f"$x+{n}$", f"${n}+x$"),
        lambda n: (rf"${n}\sqrt{{2}}$", rf"$\sqrt{{2}} \cdot {n}$"),
        lambda n: (str(n), f"$x={n}$"),
        lambda n: (f"$(1, {n}]$", f"$(1,{n}]$"),
        lambda n: (rf"${n}\pi$", rf"$\pi \cdot {n}$"),
    ),
}


def make(mix: Mix, count: int, seed: int) -> list[Pair]:
    """`count` pairs, prompt by prompt; half of what is given is right, and a prompt has three wrong
    answers.
    """
    draw = random.Random(seed)
    pairs: list[Pair] = []
    while len(pairs) < count:
        [kind] = draw.choices(list(mix.shares), list(mix.shares.values()))
        spell = draw.choice(KINDS[kind])
        value = draw.randrange(1, 100_000)
        wrong = [value + draw.randrange(1, 100) for _ in range(3)]
        for _ in range(mix.group):
            given = value if draw.random() < 0.5 else draw.choice(wrong)
            pairs.append((spell(given)[draw.random() < 0.25], spell(value)[0]))
    return pairs[:count]


def measure(arm: str, count: int) -> dict:
    """Seconds and verdicts of one arm for each mix, in this process."""
    started = time.perf_counter()
    if arm.startswith("workbench"):
        from workbench.rewards.compare import same_answers

        def judge(pairs: list[Pair]) -> list:
            return same_answers(
                [given for given, _ in pairs], [right for _, right in pairs], deadline_s=300
            )

    else:
        from math_verify import parse, verify

        def judge(pairs: list[Pair]) -> list:
            return [verify(parse(right), parse(given)) for given, right in pairs]

    judge(make(MIXES["formulas"], 50, seed=99))
    found = {"start_s": time.perf_counter() - started, "seconds": {}, "verdicts": {}}
    for seed, (name, mix) in enumerate(MIXES.items()):
        pairs = make(mix, count, seed)
        started = time.perf_counter()
        verdicts = judge(pairs)
        found["seconds"][name] = time.perf_counter() - started
        found["verdicts"][name] = "".join(
            "?10"[[None, True, False].index(same)] for same in verdicts
        )
    return found


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=ARMS, help="measure this arm here, and print JSON")
    asked = measuring.parse(parser, pairs=16, rounds=1)
    if asked.measure:
        print(json.dumps(measure(asked.measure, asked.pairs)))
        return
    stamped = measuring.stamp()
    results = measuring.in_rounds(
        ARMS,
        asked.rounds,
        lambda arm: measuring.own_process(
            "answers.py", "--measure", arm, "--pairs", str(asked.pairs)
        ),
        lambda run: f"{sum(run['seconds'].values()):.1f} s",
    )
    every = [run["verdicts"] for runs in results.values() for run in runs]
    assert all(verdicts == every[0] for verdicts in every), "the arms disagree on a verdict"
    assert all("?" not in letters for letters in every[0].values()), "a pair was not judged"
    seconds = {
        arm: {mix: [run["seconds"][mix] for run in runs] for mix in MIXES}
        for arm, runs in results.items()
    }
    ours, again, theirs = (seconds[arm] for arm in ARMS)
    gain = {mix: ratio(theirs[mix], ours[mix]) for mix in MIXES}
    noise = {mix: ratio(ours[mix], again[mix]) for mix in MIXES}
    speed = {
        arm: {mix: asked.pairs / min(own[mix]) for mix in MIXES} for arm, own in seconds.items()
    }
    found = {
        "pairs": asked.pairs,
        "mixes": {name: mix._asdict() for name, mix in MIXES.items()},
        "same": {mix: letters.count("1") for mix, letters in every[0].items()},
        "pairs_per_s": speed,
        "times_as_fast": gain,
        "a_over_a": noise,
        "start_s": {arm: min(run["start_s"] for run in runs) for arm, runs in results.items()},
        "seconds": seconds,
    }
    rows = [
        [
            mix,
            *(f"{speed[arm][mix]:,.0f}" for arm in ARMS),
            f"{gain[mix].of_least:.1f}",
            between(noise[mix]),
        ]
        for mix in MIXES
    ]
    lines = [
        Line(
            f"comparing answers: {mix}",
            f"{gain[mix].of_least:.1f} times as fast",
            "math-verify",
            between(noise[mix]),
        )
        for mix in ("mostly integers", "with 10 % formulas", "formulas")
    ]
    header = ["pairs/s", "workbench", "again", "math-verify", "times as fast", "A/A"]
    measuring.save("answers", asked, stamped, lines, (header, rows), found)


if __name__ == "__main__":
    main()
