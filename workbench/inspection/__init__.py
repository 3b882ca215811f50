"""04: what the run gained, and how it got there.

Every view of a run is here by its name, `workbench.inspection.regressions`, and is imported when it
is first used.
"""

import importlib
from typing import Any

from workbench.base.instruments import places_in

_VIEWS = {
    "read_evaluation": "inspection.evaluation",
    "regressions": "inspection.compared",
    "failures": "inspection.causes",
    "through_time": "inspection.prompts",
    "never_mixed": "inspection.prompts",
    "hacking": "inspection.hacks",
    "which_rung": "health.rung",
    "what_next": "inspection.next",
    "token_view": "inspection.tokens",
    "browse": "inspection.browsing",
    "Browser": "views.browser",
    "merge_risk": "exporting.risk",
    "ByHand": "teaching._lib.by_hand",
    "write_report": "commands.reporting",
}
_MODULE = {name: f"workbench.{module}" for name, module in _VIEWS.items()}
_MODULE |= places_in("inspection")
__all__ = [*_MODULE]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'workbench.inspection' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULE)
