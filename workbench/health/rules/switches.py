"""Which settings did anything: read off the ratios, clip shares, norms and cut completions of the record."""

from __future__ import annotations

from workbench.health.switches import CLIPPED_LOSSES, ON_ITS_RATIO, Inert, more_updates, on_the_ratio, ratio_is_one, unread, value
from workbench.health.verdicts import NOTE, OK, RunView, Verdict, missing, rule
from workbench.run.metrics import CLIPPED, GRAD_NORM, KL, RATIO_HIGH, RATIO_LOW, RATIO_MASKED


@rule(batches=0)
def inert_settings(view: RunView) -> Verdict:
    """Every setting that changed nothing in this run, defaults too, and those that did."""
    settings, rows = view.config.settings, view.rows
    if not rows:
        return missing("metrics.jsonl", "no step was logged")
    if "loss_type" not in settings:
        return missing("loss_type", "the record does not say which settings were in force")
    judged = _Judged(view)
    judged.ratio()
    judged.others()
    inert = [f"{', '.join(own.names)}: inert ({own.why})" for own in judged.inert]
    live = ", ".join(f"{name} ({how})" for name, how in judged.live.items())
    line = "; ".join([*inert, *([f"live: {live}"] if live else [])]) or "no setting could be judged"
    evidence = {"inert": [name for own in judged.inert for name in own.names], "live": [*judged.live], "rows": len(rows)}
    remedy = "; ".join(dict.fromkeys(f"{', '.join(own.names)}: {own.remedy}" for own in judged.inert if own.remedy))
    over = (rows[0].get("step"), rows[-1].get("step"))
    return view.verdict(NOTE if inert else OK, line, evidence, "", remedy and f"what would make them matter: {remedy}", over=over)


class _Judged:
    """`inert` and `live` of one view, filled in by `ratio` and `others`."""

    def __init__(self, view: RunView) -> None:
        self.view, self.settings, self.asked = view, view.config.settings, set(view.config.asked)
        self.inert = unread(self.settings, self.asked)
        self.live: dict[str, str] = {}
        self._idle = {name for own in self.inert for name in own.names}

    def ratio(self) -> None:
        """What looks at the importance ratio."""
        settings, view = self.settings, self.view
        lows, highs = ([number for _, number in view.numbers(name)] for name in (RATIO_LOW, RATIO_HIGH))
        ones = sum(low == high == 1 for low, high in zip(lows, highs, strict=False))
        clips = value(settings, "loss_type") in CLIPPED_LOSSES
        on = {"delta": settings.get("delta"), "off_policy_mask_threshold": settings.get("off_policy_mask_threshold")}
        names = (self.asked | {name for name, own in on.items() if own is not None} | set(ON_ITS_RATIO * clips)) - self._idle
        exact, rounded = on_the_ratio(settings, names)
        if ones == len(lows) and (lows or ratio_is_one(settings)):
            # Unsloth's GPU trainer has a loss of its own, in which nothing is measured; it takes the ratio for 1 as TRL does.
            why = f"ratio 1 in {ones} of {len(lows)} steps" if lows else "one update per generation, by the settings"
            if exact:
                self.inert.append(Inert(tuple(exact), why, more_updates(settings)))
            if rounded:
                self.inert.append(Inert(tuple(rounded), f"{why}, but for rounding", more_updates(settings)))
            return
        reach = f"the ratio went from {min(lows):.3g} to {max(highs):.3g}" if lows else "the ratio was not measured"
        low, high, both = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")
        clip = {"epsilon": low, "epsilon_high": high} if settings.get("epsilon_high") is not None else {"epsilon": both}
        for name, key in clip.items() if clips else ():
            self._struck(name, view.numbers(key), "clipped", reach, f"a smaller {name}")
        if (cap := on["delta"]) is not None and clips and highs:
            self._judge("delta", max(highs) > cap, "reached", f"never reached: {reach}", "a smaller delta")
        if value(settings, "loss_type") == "cispo" and highs:
            cap = settings.get("epsilon_high") or value(settings, "epsilon")
            how, why = f"capped, {reach}", f"never reached: {reach}"
            self._judge("epsilon_high", max(highs) > cap, how, why, "a smaller epsilon_high")
        if on["off_policy_mask_threshold"] is not None:
            self._struck("off_policy_mask_threshold", view.numbers(RATIO_MASKED), "masked", reach, "a smaller threshold")
        others = [*exact, *rounded, *(["num_iterations"] if value(settings, "num_iterations") > 1 else [])]
        if lows:
            left = f"the ratio left 1 in {len(lows) - ones} of {len(lows)} steps"
            named = {*clip, *on, *(["epsilon_high"] if clips or value(settings, "loss_type") == "cispo" else [])}
            self.live |= {name: left for name in others if name not in named}

    def others(self) -> None:
        """What looks at the gradient, the reference and the ends of completions."""
        settings, view = self.settings, self.view
        if value(settings, "beta") and (kl := view.numbers(KL)):
            self._struck("beta", kl, "KL was above 0", "the policy is still the reference", "more steps")
        norms, most = view.numbers(GRAD_NORM), settings.get("max_grad_norm")
        if most and norms and settings.get("logging_steps", 1) == 1:  # else the norms between were not logged
            # torch's clip_grad_norm_ divides by the norm + 1e-6, and multiplies by 1 at most.
            over = [(step, float(norm + 1e-6 > most)) for step, norm in norms]
            highest = max(norm for _, norm in norms)
            self._struck("max_grad_norm", over, "reached", f"grad_norm {highest:.2g} at most", f"a value below {highest:.2g}")
        if settings.get("mask_truncated_completions") and (cut := view.numbers(CLIPPED)):
            share = sum(number for _, number in cut) / len(cut)
            how, remedy = f"took {share:.0%} of the completions out of the loss,", "nothing needs to: no completion is cut"
            self._struck("mask_truncated_completions", cut, how, "none was cut", remedy)

    def _struck(self, name: str, numbers: list[tuple[int, float]], how: str, why: str, remedy: str) -> None:
        if numbers:
            struck = sum(number > 0 for _, number in numbers)
            never = f"{how} in 0 of {len(numbers)} steps: {why}"
            self._judge(name, bool(struck), f"{how} in {struck} of {len(numbers)} steps", never, remedy)

    def _judge(self, name: str, live: bool, how: str, why: str, remedy: str) -> None:
        if live:
            self.live[name] = how
        else:
            self.inert.append(Inert((name,), why, remedy))
