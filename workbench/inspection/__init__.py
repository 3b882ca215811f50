"""04: what the run gained, and how it got there.

Every view of a run is here by its name, `workbench.inspection.regressions`, and is imported when it
is first used.
"""

import importlib
from typing import Any

_VIEWS = {
    "evaluation": ("read_evaluation",),
    "compared": ("regressions",),
    "causes": ("failures",),
    "prompts": ("through_time", "never_mixed"),
    "hacks": ("hacking",),
    "tokens": ("token_view",),
    "several_runs": ("compare_runs",),
    "browsing": ("browse",),
    "others": ("read_record",),
    "eval_logs": ("write_eval_log",),
    "workbench.views.browser": ("Browser",),
    "workbench.reporting": ("write_report",),
}
_MODULE = {name: module for module, names in _VIEWS.items() for name in names}
__all__ = [*_MODULE]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'workbench.inspection' has no attribute {name!r}")
    module = _MODULE[name] if "." in _MODULE[name] else f"workbench.inspection.{_MODULE[name]}"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULE)
