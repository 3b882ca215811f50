"""What can go wrong with a run, one rule each: the numbers that show it, what causes it, and what to do.

A rule looks at one `RunView` and gives a verdict, or several. A false alarm costs more than a late one, so each rule waits for
enough batches, groups or completions, compares the bounds of intervals rather than means, and says "skipped" with the missing
key where the run's data cannot show it.
"""

from __future__ import annotations

from workbench.health.rules import completions, numbers, rewards

RULES = (
    numbers.non_finite,
    numbers.zero_gradient,
    rewards.reward_cannot_pay,
    rewards.one_function,
    completions.dead_groups,
    completions.collapse,
    completions.truncation,
    completions.length_drift,
    completions.format_without_right,
    numbers.kl_runaway,
    numbers.kl_not_measured,
    rewards.slow_learning,
    completions.wasted,
)
