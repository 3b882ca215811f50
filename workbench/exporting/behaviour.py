"""What an artefact writes, and how likely it finds the live policy's texts, compared with that
policy, prompt by prompt.

Two things are compared. Probabilities of completions that the policy sampled: they tell a policy
from its base where both write the same greedy answers. And greedy completions: what they earn, how
many are right, how many end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.base.kinds import Fields
from workbench.exporting.apart import Progress
from workbench.exporting.artefacts import QUANTISED, Artefact
from workbench.exporting.checks import Check
from workbench.exporting.reading import HFReader, Reader
from workbench.exporting.reference import ProofRequest, Reference, Written, scored
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
Numbers = Sequence[float]
Rows = Sequence[Numbers]  # one of each completion
_NOTHING = 1e-9  # a change of a reward below this is rounding
FEWEST = 10  # prompts: with fewer, no result could be significant
_MORE_BITS = "take a format of more bits"
_BEYOND_16_BITS = ("16 bits round", "the adapter, or train further")
# what rounds the change away, and what to take instead
_ROUNDS = {
    "merged_16bit": _BEYOND_16_BITS,
    "gguf_f16": _BEYOND_16_BITS,
    "merged_4bit": ("NF4 rounds", "gguf_q8_0 or merged_16bit"),
    "gguf_q4_k_m": ("Q4_K_M rounds", "gguf_q8_0 or merged_16bit"),
    "gguf_q8_0": ("Q8_0 rounds", "merged_16bit or the adapter"),
}
# It may have been merged into weights that the run never had beside its adapter.
_OFF_GRID = (
    "if it was trained beside 4-bit weights (`wb.inspection.merge_risk` says how far they are from"
    " the 16-bit ones), merge into those: `workbench export RUN --into dequantised --overwrite`"
)
_AGAIN = (
    "export it again with --overwrite; if that gives the same, the export is at fault: report it"
)


def written_by(reader: Reader, request: ProofRequest, progress: Progress) -> Written:
    """In the artefact's process: its greedy completions, and its log-probabilities of the policy's
    samples.
    """
    prompts = [reader.prompt_ids(prompt) for prompt in request.prompts]
    most, count = request.max_completion_length, len(prompts)
    ids: list[list[int]] = []
    while len(ids) < count:
        if isinstance(reader, HFReader):
            ids += reader.generate(prompts[len(ids) :][:TOGETHER], most)
        else:
            ids.append(reader.write(prompts[len(ids)], most))
        progress(len(ids), 2 * count)
    logprobs = []
    for prompt, completion in zip(prompts, request.sampled_ids or (), strict=True):
        logprobs.append(reader.logprobs(prompt, completion))
        progress(count + len(logprobs), 2 * count)
    ended = [len(own) < most or own[-1] in reader.ends for own in ids]
    return Written(ids, ended, texts=[reader.decode(own) for own in ids], logprobs=logprobs)


def check_behaviour(
    artefact: Artefact,
    written: Written,
    reference: Reference,
    suite: RewardSuite,
    vouched: bool = False,
) -> tuple[list[Check], Fields]:
    """Compare what the artefact wrote with the live policy: the checks, and the measurements with
    95 % intervals.

    The live policy is also the reference of the quantised forms: their loss includes what they lose
    against a proven 16-bit form, and what that form lost before. `vouched`: its tensors are what
    rounding the sum gives.
    """
    import numpy as np

    if not all(np.isfinite(row).all() for row in written.logprobs):
        said = "some of its log-probabilities are NaN or infinite"
        return [Check("behaviour", "log-probabilities", False, said, "unreadable", _AGAIN)], {}
    policy, base, own = reference.policy, reference.base, scored(suite, written)
    measured = _likelihoods(own.logprobs, reference.policy_logprobs, reference.base_logprobs)
    answers = list(zip(policy.ids, own.ids, strict=True))
    # Where the two give the same two answers again, nothing new is seen.
    witnesses = np.unique([str(pair) for pair in answers], return_inverse=True)[1]
    ties = zip(answers, reference.ties or [[]] * len(answers), strict=True)
    tied = np.array([_parting(*pair) in likeliest for pair, likeliest in ties])
    for name, key in {"reward": "reward", "pass@1": "right", "ended": "ended"}.items():
        live, mine, without = (getattr(each, key) for each in (policy, own, base))
        gain = _paired(without, live)
        measured[name] = _paired(live, mine, witnesses, tied) | {
            "by_prompt": _paired(live, mine, tied=tied),
            "base": float(np.mean(without)),
            "told": gain["low"] > 0 or gain["high"] < 0,
        }
    measured |= {"prompts": len(answers), "ties": int(tied.sum())}
    judges = (_likelihood, _ends, _earns)
    checks = [judge(artefact, measured) for judge in judges]
    return [_changed(artefact, measured, vouched), *checks], measured


def _parting(live: list[int], own: list[int]) -> tuple[int, int] | None:
    # (place, the artefact's token) where two answers part; None: they do not.
    pairs = enumerate(zip(live, own, strict=False))
    return next(((at, token) for at, (other, token) in pairs if other != token), None)


def _likelihoods(own_rows: Rows, live_rows: Rows, base_rows: Rows) -> Fields:
    import numpy as np

    own, live, base = (np.concatenate(rows) for rows in (own_rows, live_rows, base_rows))
    completion = np.repeat(np.arange(len(own_rows)), [len(row) for row in own_rows])

    def clustered(
        above: np.ndarray, below: np.ndarray, errors: float = 1.96
    ) -> tuple[float, float, float]:
        # (sum of above / sum of below, low, high): so many standard errors, with completions as
        # the sample (linearised).
        tops, bottoms = (np.bincount(completion, values) for values in (above, below))
        total = bottoms.sum()
        if not total:
            return 1.0, 0.0, 1.0
        ratio = tops.sum() / total
        half = errors * np.std(tops - ratio * bottoms, ddof=1) * len(tops) ** 0.5 / total
        return float(ratio), float(ratio - half), float(ratio + half)

    def k3(other: np.ndarray) -> np.ndarray:
        # TRL's estimator of the KL divergence, per token, on completions that the policy sampled.
        return np.exp(other - live) - (other - live) - 1

    kl, low, high = clustered(k3(own), np.ones_like(own))
    # How far it has come from the base (0) to the policy (1): the step that it took, projected on
    # the run's. Below a half it is nearer to the base. Rounding of either sign averages out over
    # the tokens, which it does not in a distance.
    step = live - base
    share, least, most = clustered((own - base) * step, step**2, errors=4.0)
    return {
        "logprob_difference": {
            "mean": float(np.abs(own - live).mean()),
            "largest": float(np.abs(own - live).max()),
            "base": float(np.abs(step).mean()),
        },
        "kl_per_token": {
            "artefact": kl, "low": max(0.0, low), "high": high, "base": float(k3(base).mean()),
        },
        "of_the_run": {
            "share": share, "low": least, "high": most,
        },
        "tokens": len(own),
    }  # fmt: skip


def _paired(live: Numbers, own: Numbers, witnesses: Any = None, tied: Any = False) -> Fields:
    # `witnesses`: prompts with one number are seen as one; None: each is alone. What a tie parts is
    # no difference.
    import numpy as np
    from scipy.stats import binomtest

    from workbench.inspection.statistics import t_interval

    before, after = (np.array(each, dtype=float) for each in (live, own))
    change = np.where(tied, 0.0, after - before)
    seen = change if witnesses is None else np.bincount(witnesses, change)
    if len(seen) > 1:
        mean, half = t_interval(seen * len(seen) / len(change))
    else:  # one witness has no interval
        mean, half = float(change.mean()), float("inf") if change.any() else 0.0
    # The exact sign test on the prompts where the two differ (McNemar's, for shares): it needs no
    # normal distribution, which a few prompts that fall from right to wrong do not have, and ten
    # falls and no rise are significant.
    fell, rose = int((seen < -_NOTHING).sum()), int((seen > _NOTHING).sum())
    chance = binomtest(fell, fell + rose, alternative="greater").pvalue if fell else 1.0
    return {
        "policy": float(before.mean()), "artefact": float(after.mean()), "difference": mean,
        "low": mean - half, "high": mean + half, "fell": fell, "rose": rose,
        "chance": float(chance),
    }  # fmt: skip


def _lower(artefact: Artefact, pair: Fields) -> bool:
    if artefact.format in QUANTISED:
        return pair["high"] < -POINTS
    return pair["chance"] < ALPHA and pair["high"] < 0


def _changed(artefact: Artefact, measured: Fields, vouched: bool) -> Check:
    name = "the run's change is in it"
    moved, run = measured["logprob_difference"]["base"], measured["of_the_run"]
    if not moved:
        said = "the run changed nothing: its policy finds all completions as likely as the base"
        return Check("behaviour", name, None, said)
    said = (
        f"{run['share']:.0%} of the way from the base (0 %) to the policy (100 %), on"
        f" {measured['tokens']:,} tokens ({run['low']:.0%} to {run['high']:.0%})"
    )
    if run["high"] - run["low"] > 1 or moved < TINY:
        said += ": the run changed too little, or on too few prompts, to tell"
        return Check("behaviour", name, None, said)
    lost, several = run["high"] < HALF, run["low"] > TWICE
    if not lost and not several:
        passed = True if HALF <= run["share"] <= TWICE else None
        return Check("behaviour", name, passed, said)
    if vouched and moved <= ROUNDING and "16" in artefact.format:
        said += ": 16 bits round a step as small as the run's away; take the adapter"
        return Check("behaviour", name, None, said)
    remedy = _AGAIN
    if artefact.format in QUANTISED:
        remedy = f"prove merged_16bit; if that passes, {_MORE_BITS}"
    # Right tensors are no excuse: what carries less than half of the run is not what was trained.
    if vouched and lost and artefact.format in _ROUNDS:
        rounds, instead = _ROUNDS[artefact.format]
        said += f": {rounds} most of the change away"
        remedy = f"take {instead}"
    return Check("behaviour", name, False, said, "differs", remedy)


def _likelihood(artefact: Artefact, measured: Fields) -> Check:
    name = "log-probabilities of the policy's completions"
    difference, kl = measured["logprob_difference"], measured["kl_per_token"]
    said = (
        f"mean difference {difference['mean']:.4f}, the base's {difference['base']:.4f}; largest"
        f" {difference['largest']:.3g}; KL per token {kl['artefact']:.2g} ({kl['low']:.2g} to"
        f" {kl['high']:.2g}), the base's {kl['base']:.2g}"
    )
    # In other weights than those it was trained beside, or in fewer bits, other probabilities are
    # no fault by themselves.
    beside = artefact.format == "adapter" or artefact.into == "dequantised"
    if artefact.format in QUANTISED or not beside:
        return Check("behaviour", name, None, said, measured=True)
    if difference["mean"] > ROUNDING:
        return Check("behaviour", name, False, said, "differs", _AGAIN)
    if difference["base"] <= ROUNDING:
        said += f": the base itself is within the limit, {ROUNDING}"
        return Check("behaviour", name, None, said)
    return Check("behaviour", name, True, said)


def _if_enough(artefact: Artefact, name: str, said: str, measured: Fields, *pairs: Fields) -> Check:
    if measured["ties"]:
        said += f"; {measured['ties']} answers part at a tie of the policy's own precision"
    if measured["prompts"] < FEWEST:
        said += f"; fewer than {FEWEST} prompts cannot tell damage from chance"
        return Check("behaviour", name, None, said)
    for pair in pairs:
        if _lower(artefact, pair["by_prompt"]):
            said += (
                f"; {pair['by_prompt']['fell']} prompts fell, but they got the same answers again"
                f" and again: {pair['fell']} witnesses cannot tell damage from chance"
            )
            return Check("behaviour", name, None, said)
    return Check("behaviour", name, True, said)


def _ends(artefact: Artefact, measured: Fields) -> Check:
    ended, name = measured["ended"], "completions end by EOS"
    said = (
        f"{ended['artefact']:.0%} end, the policy's {ended['policy']:.0%}, the base's"
        f" {ended['base']:.0%}"
    )
    if not _lower(artefact, ended):
        return _if_enough(artefact, name, said, measured, ended)
    # A model that finds the policy's completions as likely as the policy does would have ended
    # them.
    difference = measured["logprob_difference"]
    if difference["mean"] > max(ROUNDING, difference["base"] / 2):
        return Check("behaviour", name, False, said, "worse", _AGAIN)
    remedy = (
        "compare eos_token_id in its generation_config.json, and its tokenizer's eos_token,"
        " with the base's"
    )
    return Check("behaviour", name, False, said, "eos_missing", remedy)


def _earns(artefact: Artefact, measured: Fields) -> Check:
    reward, right = measured["reward"], measured["pass@1"]
    name = f"greedy answers to {measured['prompts']} held-out prompts"
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
    quantised = artefact.format in QUANTISED
    if _lower(artefact, right) or (not quantised and _lower(artefact, reward)):
        remedy = _MORE_BITS if quantised else _AGAIN
        if artefact.into == "base" and artefact.format != "adapter":
            remedy += f"; {_OFF_GRID}"
        return Check("behaviour", name, False, said, "worse", remedy)
    return _if_enough(artefact, name, said, measured, reward, right)
