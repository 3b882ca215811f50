"""Settings that can do nothing: one table for the plan and for a run's health.

The plan knows the other settings; a run's health also knows what was measured. What each setting
does was read in the installed TRL: `GRPOTrainer._compute_loss`, `get_off_policy_mask`,
`get_gamma_weights` and `_generate_and_score_completions`. Where every update is made by the policy
that generated, the importance ratio compares a log-probability with itself: it is exactly 1, and
does nothing.

`Settings` hold every field of GRPOConfig by name: its defaults with a plan's settings over them, or
a manifest's `settings.in_force`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.kinds import Fields
from workbench.recipe import packaged
from workbench.run.metrics import CLIPPED, GRAD_NORM, KL, RATIO_HIGH, RATIO_LOW, RATIO_MASKED

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
_TABLE = Path(__file__).with_suffix(".yaml")
_ROUNDING = 1e-3  # of a ratio whose two log-probabilities were computed apart

Settings = Fields
Condition = Callable[[Settings], Any]


class Inert(NamedTuple):
    """Settings that do nothing, why, and the smallest change that would make them matter."""

    names: tuple[str, ...]
    why: str
    remedy: str


class Judged(NamedTuple):
    """Settings that change nothing, and those that do -> how."""

    inert: list[Inert]
    live: dict[str, str]


# What a setting did in a run: how it changed something; or (why it did not, what would).
Effect = str | tuple[str, str]


class MeasuredRun:
    """What a run's metrics show of its settings; `numbers(key)` gives (step, value) pairs."""

    def __init__(self, settings: Settings, numbers: Callable[[str], list[tuple[int, float]]]):
        self.settings = settings
        self.numbers = numbers
        self.ratios = list(zip(self.values(RATIO_LOW), self.values(RATIO_HIGH), strict=False))
        rounding = _ROUNDING if corrects_vllm(settings) and ratio_is_one(settings) else 0.0
        apart = [max(abs(low - 1), abs(high - 1)) for low, high in self.ratios]
        self.ones = sum(distance <= rounding for distance in apart)
        self.is_one = self.ones == len(apart) if apart else ratio_is_one(settings)
        self.reach = "the ratio was not measured"
        self.one = f"one update per generation, so the ratio is {'' if rounding else 'exactly '}1"
        if apart:
            self.one = f"ratio 1 in {self.ones} of {len(apart)} steps"
            lows, highs = zip(*self.ratios, strict=True)
            self.reach = f"the ratio went from {min(lows):.3g} to {max(highs):.3g}"

    def values(self, key: str) -> list[float]:
        """A metric, one number per step in which it was measured."""
        return [number for _, number in self.numbers(key)]

    def steps(self, how: str, key: str, why: str, remedy: str, above: float = 0) -> Effect | None:
        """Whether a metric was `above` a number, and in how many steps; None: it was not
        measured.
        """
        struck = [value > above for value in self.values(key)]
        times = f"{how} in {sum(struck)} of {len(struck)} steps"
        if not struck:
            return None
        return times if any(struck) else (f"{times}: {why}", remedy)

    def clipped(self, name: str, side: str) -> Effect | None:
        """For a bound of the clip: TRL counts both in one metric where they are one."""
        if self.settings[name] is None:
            return None
        side = "region" if self.settings["epsilon_high"] is None else side
        return self.steps("clipped", f"clip_ratio/{side}_mean", self.reach, f"a smaller {name}")

    def reached(self, name: str) -> Effect | None:
        """For an upper bound of the ratio."""
        most = self.settings[name]
        if not self.ratios or most is None:
            return None
        highest = max(high for _, high in self.ratios)
        if highest > most:
            return f"in reach: {self.reach}"
        return f"never reached: {self.reach}", f"{name} below {highest:.3g}"

    def left_one(self) -> Effect | None:
        """For a setting that acts wherever the ratio is not 1."""
        count = len(self.ratios)
        left = count - self.ones
        return f"the ratio left 1 in {left} of {count} steps" if left else None

    def shortened(self) -> Effect | None:
        """For max_grad_norm, where every step's norm is known and one is above 0."""
        highest = max(self.values(GRAD_NORM), default=0.0)
        if not highest or self.settings["logging_steps"] != 1:
            return None
        # torch's clip_grad_norm_ divides by the norm + 1e-6, and multiplies by 1 at most.
        above = self.settings["max_grad_norm"] - 1e-6
        remedy = f"a value below {highest:.2g}"
        return self.steps("reached", GRAD_NORM, f"grad_norm {highest:.2g} at most", remedy, above)

    def cut(self) -> Effect | None:
        """For mask_truncated_completions."""
        shares = self.values(CLIPPED)
        if not shares:
            return None
        if not any(shares):
            return "no completion was cut", ""
        return f"took {sum(shares) / len(shares):.0%} of the completions out of the loss"


Of = Callable[[MeasuredRun], Effect | None]


class Switch(NamedTuple):
    """Settings that are inert together, by the others' values or by what was measured."""

    names: str  # with spaces between; * stands for any letters
    reads: Condition = lambda given: True  # whether anything reads them
    why: str = ""  # nothing does
    remedy: str = ""
    exact: Condition | None = None  # whether a ratio of 1 leaves nothing of them
    rounded: Condition | None = None  # whether it leaves only rounding
    apart: str = ""  # what that rounding tells them from
    watched: Condition = lambda given: False  # judged after a run though nobody asked for it
    measured: Of | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        """Those of the given names that belong to this switch."""
        kinds = self.names.split()
        return [name for name in names if any(fnmatchcase(name, kind) for kind in kinds)]

    def effect(self, run: MeasuredRun, watched: bool) -> Effect | None:
        """What these settings did in a run, or can do; None: nothing can be said."""
        settings = run.settings
        same = "grpo" if settings["loss_type"] == "sapo" else "dapo"
        if not self.reads(settings):
            why = self.why.format(loss_type=settings["loss_type"])
            remedy = self.remedy
            if remedy.startswith("loss_type") and ratio_is_one(settings):
                remedy += f", and {more_updates(settings)}"
            return why, remedy
        exact, rounded = (bool(kind and kind(settings)) for kind in (self.exact, self.rounded))
        if run.is_one and (self.exact or self.rounded):
            words = run.one
            if not exact or corrects_vllm(settings):  # whose ratios are computed apart
                words += f", and only rounding differs{self.apart.format(same=same)}"
            return (words, more_updates(settings)) if exact or rounded else None
        if self.measured:
            return self.measured(run) if watched else None
        return run.left_one() if exact or rounded else None


def corrects_kl(settings: Settings) -> bool:
    """Whether the importance ratio is also in the KL term."""
    return bool(settings["beta"] and settings["use_bias_correction_kl"])


def corrects_vllm(settings: Settings) -> bool:
    """Whether vLLM generates, with its ratios to the trainer's probabilities weighed in."""
    return bool(settings["use_vllm"] and settings["vllm_importance_sampling_correction"])


def ratio_is_one(settings: Settings, times: int | None = None) -> bool:
    """Whether every update is made by the policy that generated, so that the ratio is 1.

    TRL then takes each update's own log-probabilities for the old ones; where it corrects vLLM's it
    computes them separately, and rounding may leave the ratio a little off 1. `times`:
    num_iterations.
    """
    accumulated = settings["gradient_accumulation_steps"]
    passes = settings["steps_per_generation"] or accumulated
    return accumulated % (passes * (times or settings["num_iterations"])) == 0


def more_updates(settings: Settings) -> str:
    """The smallest change that makes the ratio leave 1."""
    times = next(times for times in range(2, 1_000) if not ratio_is_one(settings, times))
    return f"several updates per generation: num_iterations = {times}"


def _is(name: str, *wanted: object) -> Condition:
    return lambda given: given[name] in wanted


clips = _is("loss_type", *CLIPPED_LOSSES)
by_sequence = _is("importance_sampling_level", "sequence")
_caps = _is("loss_type", "cispo")


def _cap_is_above(given: Settings) -> bool:
    return _caps(given) and (given["epsilon_high"] or given["epsilon"]) >= 1


def _level_is_same(given: Settings) -> bool:
    # With a corrected KL, or some tokens masked, a sequence's gradient differs from its tokens'.
    return not corrects_kl(given) and given["top_entropy_quantile"] == 1


_OTHER_LOSS = "loss_type = '{loss_type}' does not read it"
_DAPO = "loss_type = 'dapo'"


def _in_table() -> Iterator[Switch]:
    # Those of settings that are read where one other has certain values, as inert.yaml has them.
    def reads(where: str, values: list[object], wanted: bool) -> Condition:
        return lambda given: where not in given or (given[where] in values) is wanted

    for names, (where, values, wanted, *texts) in packaged(_TABLE).items():
        read = reads(where, values, wanted)
        yield Switch(names, read, *texts[:2], **dict.fromkeys(texts[2:], read))


SWITCHES = (
    Switch("epsilon", lambda given: clips(given) or (_caps(given) and not given["epsilon_high"]),
        _OTHER_LOSS, _DAPO, exact=clips, watched=clips,
        measured=lambda run: run.clipped("epsilon", "low")),
    Switch("epsilon_high", _is("loss_type", *CLIPPED_LOSSES, "cispo"), _OTHER_LOSS, _DAPO,
        exact=clips, watched=clips,
        measured=lambda run: run.clipped("epsilon_high", "high")),
    # The cap of cispo, and a delta below 1, reach a ratio of 1.
    Switch("epsilon_high", exact=_cap_is_above,
        watched=lambda given: _caps(given) and given["epsilon_high"] is not None,
        measured=lambda run: run.reached("epsilon_high")),
    Switch("delta", clips, _OTHER_LOSS, _DAPO,
        exact=lambda given: clips(given) and (given["delta"] is None or given["delta"] >= 1),
        watched=clips,
        measured=lambda run: run.reached("delta")),
    Switch("off_policy_mask_threshold",
        exact=lambda given: (given["off_policy_mask_threshold"] or 0) >= 0
        and not given["use_vllm"],
        watched=lambda given: given["off_policy_mask_threshold"] is not None,
        measured=lambda run: run.steps("masked", RATIO_MASKED, run.reach, "a smaller threshold")),
    Switch("importance_sampling_level",
        lambda given: given["loss_type"] != "vespo" or corrects_kl(given),
        "loss_type = 'vespo' always weights whole sequences", "loss_type = 'grpo'",
        exact=lambda given: _level_is_same(given) and (not by_sequence(given) or _caps(given)),
        rounded=_level_is_same),
    Switch("loss_type", apart=" from loss_type = '{same}'",
        rounded=lambda given: not by_sequence(given)
        and (given["loss_type"] in ("vespo", "sapo") or _cap_is_above(given))),
    Switch("num_iterations", watched=lambda given: given["num_iterations"] > 1,
        measured=MeasuredRun.left_one),
    Switch("beta", watched=itemgetter("beta"),
        measured=lambda run: run.steps(
            "KL was above 0", KL, "the policy is still the reference", "more steps")),
    Switch("max_grad_norm", watched=itemgetter("max_grad_norm"), measured=MeasuredRun.shortened),
    Switch("mask_truncated_completions", watched=itemgetter("mask_truncated_completions"),
        measured=MeasuredRun.cut),
    Switch("adam_*", lambda given: "adam" in str(given["optim"]),
        "optim is not Adam", "optim = 'adamw_torch'"),
    Switch("optim_args optim_target_modules",
        lambda given: "adamw_torch" not in str(given["optim"]),
        "optim = 'adamw_torch' takes none", "an optim that does, such as 'galore_adamw'"),
    Switch("vllm_*_sampling_mode vllm_*_sampling_clip_* vllm_*_sampling_cap", corrects_vllm,
        "vLLM's samples are not corrected",
        "use_vllm = true, with vllm_importance_sampling_correction"),
    *_in_table(),
)  # fmt: skip


def judge(run: MeasuredRun, requested: Iterable[str], watch: bool = True) -> Judged:
    """Which settings are inert and which are live; with `watch`, also settings that nobody
    requested.
    """
    causes: dict[tuple[str, str], list[str]] = {}
    live: dict[str, str] = {}
    left = sorted(set(requested))
    for switch in SWITCHES:
        watched = bool(watch and switch.watched(run.settings))
        names = [*switch.names.split()] if watched else switch.of(left)
        effect = switch.effect(run, watched) if names else None
        if effect is None:
            continue
        left = [name for name in left if name not in names]
        if isinstance(effect, str):
            live |= dict.fromkeys(names, effect)
        else:
            causes.setdefault(effect, []).extend(names)
    return Judged([Inert(tuple(names), *cause) for cause, names in causes.items()], live)


def inert_in_plan(settings: Settings, requested: Iterable[str]) -> list[Inert]:
    """Requested settings that will do nothing, as far as that is known before the run."""
    return judge(MeasuredRun(settings, lambda key: []), requested, watch=False).inert
