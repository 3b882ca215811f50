"""What can go wrong with a run, one rule each: the numbers that show it, what causes it, and what to do.

A rule looks at one `RunView` and gives a verdict, or several; what it says of cause and remedy stands in the table WHY of its
file. A false alarm costs more than a late one, so each rule waits for enough batches, groups or completions, compares the
bounds of intervals rather than means, and says "skipped" with the missing key where the run's data cannot show it.
"""

from __future__ import annotations

from workbench.health.rules import groups, metrics, progress, rewards, texts

RULES = (
    metrics.non_finite,
    metrics.zero_gradient,
    rewards.reward_cannot_pay,
    rewards.one_function,
    groups.dead_groups,
    groups.collapse,
    texts.truncation,
    texts.length_drift,
    texts.format_without_right,
    metrics.kl_runaway,
    metrics.kl_not_measured,
    progress.slow_learning,
    groups.wasted,
)
