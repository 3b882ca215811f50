"""Which settings did anything: read off the ratios, clip shares, norms and cut completions of the record."""

from __future__ import annotations

from workbench.health import switches
from workbench.health.switches import CLIPPED_LOSSES, ON_ITS_RATIO, Inert, more_updates, on_the_ratio, ratio_is_one, unread, value
from workbench.health.verdicts import NOTE, OK, RunView, Verdict, missing, rule
from workbench.run.metrics import CLIPPED, DEAD, GRAD_NORM, KL, RATIO_HIGH, RATIO_LOW, RATIO_MASKED

_ROUNDING = 1e-3  # of a ratio whose two log-probabilities were computed apart


@rule(batches=0)
def inert_settings(view: RunView) -> Verdict:
    """Every setting that changed nothing in this run, defaults too, and those that did."""
    settings, rows = view.config.settings, view.rows
    if not rows:
        return missing("metrics.jsonl", "no step was logged")
    if "loss_type" not in settings:
        return missing("loss_type", "the record does not say which settings were in force")
    dead = [share for _, share in view.numbers(DEAD)]
    if dead and min(dead) == 1:
        return missing("live groups", "every group was dead in every step, so no setting could do anything")
    idle, live = unread(settings, view.config.asked), {}

    def judge(name: str, struck: bool, how: str, why: str, remedy: str) -> None:
        if struck:
            live[name] = how
        else:
            idle.append(Inert((name,), why, remedy))

    def count(name: str, numbers: list[tuple[int, float]], how: str, why: str, remedy: str) -> None:
        if numbers:
            times = f"{how} in {(struck := sum(number > 0 for _, number in numbers))} of {len(numbers)} steps"
            judge(name, struck > 0, times, f"{times}: {why}", remedy)

    # -- what looks at the importance ratio
    loss, cap, delta = value(settings, "loss_type"), settings.get("epsilon_high"), settings.get("delta")
    clips, threshold = loss in CLIPPED_LOSSES, settings.get("off_policy_mask_threshold")
    lows, highs = ([number for _, number in view.numbers(name)] for name in (RATIO_LOW, RATIO_HIGH))
    off = _ROUNDING if switches.corrects_vllm(settings) and ratio_is_one(settings) else 0.0
    ones = sum(max(abs(low - 1), abs(high - 1)) <= off for low, high in zip(lows, highs, strict=False))
    names = {*view.config.asked, *ON_ITS_RATIO * clips, *["off_policy_mask_threshold"] * (threshold is not None)}
    exact, rounded = on_the_ratio(settings, names - {name for own in idle for name in own.names})
    if ones == len(lows) and (lows or ratio_is_one(settings)):
        # Where the trainer's loss is another, nothing is measured; it takes the ratio for 1 as TRL does.
        why = f"ratio 1 in {ones} of {len(lows)} steps" if lows else "one update per generation, by the settings"
        found = (Inert(tuple(exact), why, more_updates(settings)), Inert(tuple(rounded), f"{why}, but for rounding", ""))
        idle += [each for each in found if each.names]
    else:
        reach = f"the ratio went from {min(lows):.3g} to {max(highs):.3g}" if lows else "the ratio was not measured"
        looked = {"epsilon": "low", "epsilon_high": "high"} if cap is not None else {"epsilon": "region"}
        for name, side in looked.items() if clips else ():
            count(name, view.numbers(f"clip_ratio/{side}_mean"), "clipped", reach, f"a smaller {name}")
        for name, most in (("delta", delta if clips else None), ("epsilon_high", cap if loss == "cispo" else None)):
            if most is not None and lows:
                judge(name, max(highs) > most, f"in reach: {reach}", f"never reached: {reach}", f"{name} below {max(highs):.3g}")
        if threshold is not None:
            count("off_policy_mask_threshold", view.numbers(RATIO_MASKED), "masked", reach, "a smaller threshold")
        left = f"the ratio left 1 in {len(lows) - ones} of {len(lows)} steps"
        others = {*exact, *rounded, *["num_iterations"] * (value(settings, "num_iterations") > 1)}
        live |= dict.fromkeys(sorted(others - {*ON_ITS_RATIO, "off_policy_mask_threshold"}) if lows else (), left)
    # -- what looks at the reference, the gradient and the ends of completions
    if value(settings, "beta"):
        count("beta", view.numbers(KL), "KL was above 0", "the policy is still the reference", "more steps")
    norms, most = view.numbers(GRAD_NORM), settings.get("max_grad_norm")
    if most and norms and settings.get("logging_steps", 1) == 1:  # else the norms between were not logged
        highest = max(norm for _, norm in norms)
        # torch's clip_grad_norm_ divides by the norm + 1e-6, and multiplies by 1 at most.
        over = [(step, float(norm + 1e-6 > most)) for step, norm in norms]
        if highest:  # else nothing was learnt from, and a lower bound would not change that
            count("max_grad_norm", over, "reached", f"grad_norm {highest:.2g} at most", f"a value below {highest:.2g}")
    if settings.get("mask_truncated_completions") and (cut := view.numbers(CLIPPED)):
        how = f"took {sum(number for _, number in cut) / len(cut):.0%} of the completions out of the loss"
        judge("mask_truncated_completions", any(number for _, number in cut), how, "no completion was cut", "")
    # Settings that were requested come first; those that are inert for the same reason share a line.
    asked = set(view.config.asked)
    causes: dict[tuple[str, str], list[str]] = {}
    for own in sorted(idle, key=lambda own: asked.isdisjoint(own.names)):
        causes.setdefault((own.why, own.remedy), []).extend(own.names)
    idle = [Inert(tuple(names), *cause) for cause, names in causes.items()]
    line = [f"{', '.join(own.names)}: inert ({own.why})" for own in idle]
    line += ["live: " + ", ".join(f"{name} ({how})" for name, how in live.items())] if live else []
    names = [name for own in idle for name in own.names]
    evidence = {"inert": names, "inert_requested": [name for name in names if name in asked], "live": [*live], "rows": len(rows)}
    remedy = "; ".join(f"{', '.join(own.names)}: {own.remedy}" for own in idle if own.remedy)
    over, words = (rows[0].get("step"), rows[-1].get("step")), "; ".join(line) or "no setting can be judged"
    return view.verdict(NOTE if idle else OK, words, evidence, "", "what would matter: " * bool(remedy) + remedy, over=over)
