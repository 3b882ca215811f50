"""The embedded policy's arithmetic in words that it was not taught, "Compute 15 + 27.": harder for
its base.

In 16 tries base solves about 60 % of the held-out prompts, in 64 about 80 %; of those of
`arithmetic`, nearly all in 16.
"""

from __future__ import annotations

import functools

from workbench.tiny import task as arithmetic

_REWORDED = {"name": "arithmetic_harder", "wording": "Compute {}."}
source = functools.partial(arithmetic.source, **_REWORDED)
task = functools.partial(arithmetic.task, **_REWORDED)
