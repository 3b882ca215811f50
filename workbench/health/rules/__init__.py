"""What can go wrong with a run, one rule each: the numbers that show it, its cause, and the remedy.

A rule looks at one `ExaminedRun` and gives one or more verdicts. A false alarm costs more than a
late one, so each rule waits for enough batches, groups or completions, compares the bounds of
intervals rather than means, and says "skipped" with the missing key where the run's data cannot
show it.
"""

from __future__ import annotations

from workbench.health.rules import completions, numbers, rewards, turns
from workbench.health.verdicts import NAMES

_ALL = {**vars(numbers), **vars(rewards), **vars(completions), **vars(turns)}
RULES = [_ALL[name] for name in NAMES]
