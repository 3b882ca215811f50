"""What an artefact writes, and how likely it finds the live policy's texts, compared with that
policy, prompt by prompt.

Two things are compared. Probabilities of completions that the policy sampled: they tell a policy
from its base where both write the same greedy answers. And greedy completions: what they earn, how
many are right, how many end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.exporting.apart import Progress
from workbench.exporting.artefacts import QUANTISED, Artefact
from workbench.exporting.checks import Check
from workbench.exporting.reading import HFReader, Reader
from workbench.exporting.reference import ProofRequest, Reference, scored
from workbench.kinds import Fields
from workbench.rewards.suite import RewardSuite
from workbench.training.sampling import TOGETHER

# Mean difference of log-probabilities that 16-bit types and other kernels make: on a CPU at most
# 0.0001; on a GPU not measured.
ROUNDING = 0.05
# Log-probabilities that a run moved by less, on average, are lost where a merge is rounded to
# bfloat16.
TINY = 0.002
# shares of the run's change: surely below the one it is lost, above the other merged more than once
HALF, TWICE = 0.5, 1.5
POINTS = 0.05  # what quantising may cost beyond the interval, as a share of the prompts
# One-sided. A false alarm stops an export that is right; of 50 good exports with three tests each,
# none may give one.
ALPHA = 0.001
_NOTHING = 1e-9  # a change of a reward below this is rounding
FEWEST = 10  # prompts: with fewer, no result could be significant
_OF_LOGPROBS = ("logprob_difference", "kl_per_token")
_MORE_BITS = "take a format of more bits"
# what rounds, and what to take instead
_ROUNDS = dict.fromkeys(QUANTISED, ("NF4", "gguf_q8_0 or merged_16bit"))
_ROUNDS |= {
    "gguf_q4_k_m": ("Q4_K_M", "gguf_q8_0 or merged_16bit"),
    "gguf_q8_0": ("Q8_0", "merged_16bit or the adapter"),
}
_AGAIN = (
    "export it again with --overwrite; if that gives the same, the export is at fault: report it"
)


def written_by(
    reader: Reader, request: ProofRequest, sampled: list[list[int]], progress: Progress
) -> Fields:
    """In the artefact's process: its greedy completions, and its log-probabilities of the policy's
    samples.
    """
    prompts = [reader.prompt_ids(prompt) for prompt in request.prompts]
    most, count = request.max_completion_length, len(prompts)
    ids, logprobs = [], []
    while len(ids) < count:
        some = prompts[len(ids) : len(ids) + TOGETHER]
        ids += (
            reader.generate(some, most)
            if isinstance(reader, HFReader)
            else [reader.write(some[0], most)]
        )
        progress(len(ids), 2 * count)
    for prompt, completion in zip(prompts, sampled, strict=True):
        logprobs.append(reader.logprobs(prompt, completion))
        progress(count + len(logprobs), 2 * count)
    ended = [len(own) < most or own[-1] in reader.ends for own in ids]
    return {
        "ids": ids,
        "texts": [reader.decode(own) for own in ids],
        "ended": ended,
        "logprobs": logprobs,
    }


def check_behaviour(
    artefact: Artefact,
    found: Fields,
    reference: Reference,
    suite: RewardSuite,
    vouched: bool = False,
) -> tuple[list[Check], Fields]:
    """Compare what `written_by` found with the live policy: the checks, and the measurements with
    95 % intervals.

    The live policy is also the reference of the quantised forms: their loss includes what they lose
    against a proven 16-bit form, and what that form lost before. `vouched`: its tensors are what
    rounding the sum gives.
    """
    import numpy as np

    rows = suite.task.held_out[: len(found["ids"])]
    own = scored(suite, rows, found["ids"], found["texts"], found["ended"])
    policy, base = (
        [np.array(each) for each in of]
        for of in (reference.policy_logprobs, reference.base_logprobs)
    )
    logprobs = [
        np.array([float("nan") if each is None else float(each) for each in row])
        for row in found["logprobs"]
    ]
    if not all(np.isfinite(row).all() for row in logprobs):
        said = "some of its log-probabilities are NaN or infinite"
        return [Check("behaviour", "log-probabilities", False, said, "unreadable", _AGAIN)], {}
    measured = _likelihoods(logprobs, policy, base)
    answers = list(zip(map(tuple, reference.policy.ids), map(tuple, found["ids"]), strict=True))
    parted = [
        next(((at, two) for at, (one, two) in enumerate(zip(*pair)) if one != two), None)
        for pair in answers
    ]
    tied = np.array(
        [
            at in likeliest
            for at, likeliest in zip(parted, reference.ties or [[]] * len(rows), strict=True)
        ]
    )
    # Where the two give the same two answers again, nothing new is seen.
    witnesses = np.unique([str(pair) for pair in answers], return_inverse=True)[1]
    for name, key in {"reward": "reward", "pass@1": "right", "ended": "ended"}.items():
        live, mine, without = (
            getattr(each, key) for each in (reference.policy, own, reference.base)
        )
        gain = _paired(without, live)
        measured[name] = _paired(live, mine, witnesses, tied) | {
            "by_prompt": _paired(live, mine, tied=tied)
        }
        measured[name] |= {
            "base": float(np.mean(without)),
            "told": gain["low"] > 0 or gain["high"] < 0,
        }
    measured |= {"prompts": len(rows), "ties": int(tied.sum())}
    checks = [each(artefact, measured) for each in (_likelihood, _ends, _earns)]
    return [_changed(artefact, measured, vouched), *checks], measured


def _likelihoods(own: list[Any], policy: list[Any], base: list[Any]) -> Fields:
    import numpy as np

    flat, live, without = (np.concatenate(each) for each in (own, policy, base))
    away, moved = np.abs(flat - live), np.abs(live - without)
    # TRL's estimator (k3) of the KL divergence, per token, on completions that the policy sampled.
    by_completion = [
        np.exp(mine - theirs) - (mine - theirs) - 1
        for mine, theirs in zip(own, policy, strict=True)
    ]
    of_base = np.exp(without - live) - (without - live) - 1
    low, high = _clustered(by_completion, [np.ones_like(each) for each in by_completion])[1:]
    mean = float(np.concatenate(by_completion).mean())
    kl = {"artefact": mean, "low": max(0.0, low), "high": high, "base": float(of_base.mean())}
    # How far it has come from the base (0) to the policy (1): the step that it took, projected on
    # the run's. Below a half it is nearer to the base. Rounding of either sign averages out over
    # the tokens, which it does not in a distance.
    steps = [live_ - without_ for live_, without_ in zip(policy, base, strict=True)]
    taken = [
        (mine - without_) * step for mine, without_, step in zip(own, base, steps, strict=True)
    ]
    share = dict(
        zip(
            ("share", "low", "high"),
            _clustered(taken, [step**2 for step in steps], errors=4.0),
            strict=True,
        )
    )
    run, near = (
        float(np.square(live - without).mean()),
        {
            "near_base": without,
            "near_twice": 2 * live - without,
        },
    )
    share |= {name: bool(np.square(flat - place).mean() <= run) for name, place in near.items()}
    return {
        "logprob_difference": {
            "mean": float(away.mean()),
            "largest": float(away.max()),
            "base": float(moved.mean()),
        },
        "kl_per_token": kl,
        "of_the_run": share,
        "tokens": len(flat),
    }


def _clustered(
    above: Sequence[Any], below: Sequence[Any], errors: float = 1.96
) -> tuple[float, float, float]:
    # (sum of above / sum of below, low, high): so many standard errors, with completions as the
    # sample (linearised).
    import numpy as np

    tops, bottoms = (np.array([each.sum() for each in of]) for of in (above, below))
    if not bottoms.sum():
        return 1.0, 0.0, 1.0
    ratio = tops.sum() / bottoms.sum()
    half = errors * float(np.std(tops - ratio * bottoms, ddof=1)) * len(tops) ** 0.5 / bottoms.sum()
    return float(ratio), float(ratio - half), float(ratio + half)


def _paired(
    live: Sequence[object], own: Sequence[object], witnesses: Any = None, tied: Any = False
) -> Fields:
    # `witnesses`: prompts with one number are seen as one; None: each is alone. What a tie parts is
    # no difference.
    import numpy as np
    from scipy.stats import binomtest

    from workbench.inspection.statistics import t_interval

    before, after = (np.array(each, dtype=float) for each in (live, own))
    change = np.where(tied, 0.0, after - before)
    seen = np.bincount(range(len(change)) if witnesses is None else witnesses, change)
    mean, half = float(change.mean()), float("inf")  # one witness has no interval
    if len(seen) > 1 or not change.any():
        mean, half = t_interval(seen * len(seen) / len(change)) if len(seen) > 1 else (0.0, 0.0)
    # The exact sign test on the prompts where the two differ (McNemar's, for shares): it needs no
    # normal distribution, which a few prompts that fall from right to wrong do not have, and ten
    # falls and no rise are significant.
    fell, rose = int((seen < -_NOTHING).sum()), int((seen > _NOTHING).sum())
    chance = binomtest(fell, fell + rose, alternative="greater").pvalue if fell else 1.0
    shares = {"policy": float(before.mean()), "artefact": float(after.mean()), "difference": mean}
    return shares | {
        "low": mean - half,
        "high": mean + half,
        "fell": fell,
        "rose": rose,
        "chance": float(chance),
    }


def _lower(artefact: Artefact, pair: Fields) -> bool:
    if artefact.format in QUANTISED:
        return pair["high"] < -POINTS
    return pair["chance"] < ALPHA and pair["high"] < 0


def _changed(artefact: Artefact, measured: Fields, vouched: bool) -> Check:
    name, moved, run = (
        "the run's change is in it",
        measured["logprob_difference"]["base"],
        measured["of_the_run"],
    )
    if not moved:
        return Check(
            "behaviour",
            name,
            None,
            "the run changed nothing: its policy finds all completions as likely as the base",
        )
    said = (
        f"{run['share']:.0%} of the way from the base (0 %) to the policy (100 %), on"
        f" {measured['tokens']:,} tokens"
    )
    said += f" ({run['low']:.0%} to {run['high']:.0%})"
    if run["high"] - run["low"] > 1 or moved < TINY:
        return Check(
            "behaviour",
            name,
            None,
            f"{said}: the run changed too little, or on too few prompts, to tell",
        )
    cause = ("equals_base" if run["near_base"] else "differs") if run["high"] < HALF else ""
    cause = ("merged_twice" if run["near_twice"] else "differs") if run["low"] > TWICE else cause
    if cause and vouched and moved <= ROUNDING and "16" in artefact.format:
        return Check(
            "behaviour",
            name,
            None,
            f"{said}: 16 bits round a step as small as the run's away; take the adapter",
        )
    if cause:
        # In fewer bits right tensors are no excuse: what carries less than half of the run is not
        # what was trained.
        rounds, remedy = _ROUNDS.get(artefact.format, ("", _AGAIN))
        if vouched and run["high"] < HALF and rounds:
            said += f": {rounds} rounds most of the change away"
            return Check("behaviour", name, False, said, cause, f"take {remedy}", run)
        remedy = f"prove merged_16bit; if that passes, {_MORE_BITS}" if rounds else _AGAIN
        return Check("behaviour", name, False, said, cause, remedy, run)
    return Check(
        "behaviour", name, True if HALF <= run["share"] <= TWICE else None, said, numbers=run
    )


def _likelihood(artefact: Artefact, measured: Fields) -> Check:
    name, numbers = (
        "log-probabilities of the policy's completions",
        {each: measured[each] for each in _OF_LOGPROBS},
    )
    difference, kl = numbers.values()
    said = (
        f"mean difference {difference['mean']:.4f}, the base's {difference['base']:.4f}; largest"
        f" {difference['largest']:.3g}; "
    )
    said += (
        f"KL per token {kl['artefact']:.2g} ({kl['low']:.2g} to {kl['high']:.2g}), the base's"
        f" {kl['base']:.2g}"
    )
    # In other weights than those it was trained beside, or in fewer bits, other probabilities are
    # no fault by themselves.
    if artefact.format in QUANTISED or (
        artefact.format != "adapter" and artefact.into != "dequantised"
    ):
        return Check("behaviour", name, None, said, numbers=numbers, measured=True)
    if difference["mean"] > ROUNDING:
        return Check("behaviour", name, False, said, "differs", _AGAIN, numbers)
    if difference["base"] <= ROUNDING:
        return Check(
            "behaviour", name, None, f"{said}: the base itself is within the limit, {ROUNDING}"
        )
    return Check("behaviour", name, True, said, numbers=numbers)


def _if_enough(
    artefact: Artefact, name: str, said: str, measured: Fields, numbers: dict, *pairs: dict
) -> Check:
    said += (
        f"; {measured['ties']} answers part at a tie of the policy's own precision"
        if measured["ties"]
        else ""
    )
    if measured["prompts"] < FEWEST:
        return Check(
            "behaviour",
            name,
            None,
            f"{said}; fewer than {FEWEST} prompts cannot tell damage from chance",
        )
    if alike := [pair for pair in pairs if _lower(artefact, pair["by_prompt"])]:
        few = (
            f"{alike[0]['by_prompt']['fell']} prompts fell, but they got the same answers again and"
            " again"
        )
        return Check(
            "behaviour",
            name,
            None,
            f"{said}; {few}: {alike[0]['fell']} witnesses cannot tell damage from chance",
        )
    return Check("behaviour", name, True, said, numbers=numbers)


def _ends(artefact: Artefact, measured: Fields) -> Check:
    ended, name = measured["ended"], "completions end by EOS"
    said = (
        f"{ended['artefact']:.0%} end, the policy's {ended['policy']:.0%}, the base's"
        f" {ended['base']:.0%}"
    )
    if not _lower(artefact, ended):
        return _if_enough(artefact, name, said, measured, ended, ended)
    # A model that finds the policy's completions as likely as the policy does would have ended
    # them.
    difference, cause, remedy = measured["logprob_difference"], "worse", _AGAIN
    if difference["mean"] <= max(ROUNDING, difference["base"] / 2):
        cause = "eos_missing"
        remedy = (
            "compare eos_token_id in its generation_config.json, and its tokenizer's eos_token,"
            " with the base's"
        )
    return Check("behaviour", name, False, said, cause, remedy, ended)


def _earns(artefact: Artefact, measured: Fields) -> Check:
    reward, right = measured["reward"], measured["pass@1"]
    said = (
        f"reward {reward['artefact']:.2f}, the policy's {reward['policy']:.2f}"
        f" ({reward['low']:+.2f} to {reward['high']:+.2f}), the base's {reward['base']:.2f}; pass@1"
        f" {right['artefact']:.0%}, the policy's {right['policy']:.0%} ({100 * right['low']:+.0f}"
        f" to {100 * right['high']:+.0f} points), the base's {right['base']:.0%}"
    )
    if not (reward["told"] or right["told"]):
        said += (
            "; policy and base cannot be told apart here, so this line says nothing about training"
        )
    # A reward's unit is its task's own: in fewer bits, points are counted in right answers.
    worse = _lower(artefact, right) or (
        artefact.format not in QUANTISED and _lower(artefact, reward)
    )
    numbers, name = (
        {
            "reward": reward,
            "pass@1": right,
        },
        f"greedy answers to {measured['prompts']} held-out prompts",
    )
    if not worse:
        return _if_enough(artefact, name, said, measured, numbers, reward, right)
    remedy = _MORE_BITS if artefact.format in QUANTISED else _AGAIN
    return Check("behaviour", name, False, said, "worse", remedy, numbers)
