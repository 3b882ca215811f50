"""Which settings had an effect: read off the record's ratios, clip shares, norms and cut
completions.
"""

from __future__ import annotations

from workbench.health.verdicts import NOTE, OK, ExaminedRun, Verdict, not_examined, rule
from workbench.run.inert import MeasuredRun, judge
from workbench.run.metrics import DEAD


@rule(batches=0)
def inert_settings(view: ExaminedRun) -> Verdict:
    """Every setting, defaults included, that changed nothing in this run, and those that did."""
    settings, rows, requested = view.config.settings, view.rows, view.config.asked
    if not rows:
        return not_examined("metrics.jsonl", "no step was logged")
    dead = [share for _, share in view.numbers(DEAD)]
    if dead and min(dead) == 1:
        why = "every group was dead in every step, so no setting could do anything"
        return not_examined("live groups", why)
    try:
        inert, live = judge(MeasuredRun(settings, view.numbers), requested)
    except KeyError as error:  # a record that was made elsewhere, or with another TRL
        return not_examined(error.args[0], "the record does not say which settings were effective")
    inert.sort(key=lambda each: not {*requested} & {*each.names})
    lines = [f"{', '.join(each.names)}: inert ({each.why})" for each in inert]
    if live:
        lines.append("live: " + ", ".join(f"{name} ({how})" for name, how in live.items()))
    names = [name for each in inert for name in each.names]
    evidence = {
        "inert": names,
        "inert_requested": [name for name in names if name in requested],
        "live": [*live],
        "rows": len(rows),
    }
    remedies = [f"{', '.join(each.names)}: {each.remedy}" for each in inert if each.remedy]
    return view.verdict(
        NOTE if inert else OK,
        "; ".join(lines) or "no setting can be judged",
        evidence,
        "inert" if remedies else "",
        steps=(rows[0].get("step"), rows[-1].get("step")),
        remedies="; ".join(remedies),
    )
