"""The embedded policy's arithmetic in words that it was not taught, "Compute 15 + 27.": something to teach, not only to sharpen.

In 16 tries its base solves about 60 % of the held-out prompts; of those of `arithmetic`, nearly all.
"""

from __future__ import annotations

import functools

from workbench.tiny import task as arithmetic

_REWORDED = {"name": "arithmetic_harder", "wording": "Compute {}."}
source = functools.partial(arithmetic.source, **_REWORDED)
task = functools.partial(arithmetic.task, **_REWORDED)
