"""The GRPO workbench: see what a GRPO run will do before it costs GPU hours, watch it, and prove
what it gained.

    import workbench as wb

is all that a notebook needs. Every name below is imported when it is first used, and importing the
package itself imports no library. A result displays itself: as a table or picture in a notebook, as
text in a terminal.
"""

import importlib
import os
import sys
from typing import Any

from workbench.base import errors as errors  # what a caller catches: `wb.errors.TaskError`
from workbench.base.instruments import places_in
from workbench.tasks import loading as _loading  # noqa: F401  it registers itself

__version__ = "0.1.0"

# OpenMP threads that wait by spinning fight over the cores with whatever else runs: with one other
# busy process on two cores, sampling was measured ten times slower than with threads that soon go
# to sleep, and with both cores free it is as fast. The variables are read once, when torch loads
# OpenMP: before that, here. A value that is set already is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# The face: name -> where it lives, in the order of the notebooks.
FACE = {
    # 01: rows become prompts
    "open_source": "data.sources",
    "load_rows": "data.sources",
    "check": "data.checks",
    "preview": "training.sampling",
    "prompt_lengths": "training.sampling",
    "split": "data.split",
    "profile_difficulty": "training.profiling",
    "write_dataset": "data.split",
    "resolve": "base.workspace",
    # 02: rewards
    "Task": "task",
    "load_task": "tasks.loading",
    "rewards": "",
    "score": "rewards.scoring",
    "advantages": "rewards.groups",
    "audit_rewards": "audit.examination",
    "check_cases": "audit.regression_cases",
    "Lab": "views.lab",
    # 03: training
    "Recipe": "recipe",
    "plan": "training.plan.prepare",
    "load_policy": "training.policy",
    "sample": "training.sampling",
    "make_trainer": "training.trainer",
    "attach": "training.attach",
    "train": "training.trainer",
    "continue_run": "training.trainer",
    "start": "training.background",
    "RunPanel": "views.live",
    "examine_run": "health.diagnosis",
    # 04: what the run did
    "open_run": "run.directory",
    "by_step": "inspection.reading",
    "explain_group": "inspection.reading",
    "replay": "inspection.replaying",
    "evaluate": "inspection.evaluation",
    "inspection": "",
    # 05: leave with the model
    "export": "exporting.making",
    "prove": "exporting.proving",
    "ask": "exporting.chat",
    "chat": "views.chat",
    # all along: what a word means
    "explain": "teaching.glossary",
}
FACE |= places_in("face")
__all__ = [*FACE]


def __getattr__(name: str) -> Any:
    if name not in FACE:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}{_meant(name)}")
    place = (FACE[name] or name).removeprefix("workbench.")
    module = importlib.import_module(f"workbench.{place}")
    value = getattr(module, name) if FACE[name] else module
    globals()[name] = value
    _show_results()
    return value


def _meant(name: str) -> str:
    # Python asks for every submodule here, too, before it imports it: nothing but two small tables
    # is looked into.
    for part in ("inspection", "rewards"):
        if name in importlib.import_module(f"workbench.{part}").__all__:
            return f"; it is wb.{part}.{name}"
    import difflib

    near = difflib.get_close_matches(name, FACE, n=1)
    return f"; did you mean wb.{near[0]}?" if near else ""


def __dir__() -> list[str]:
    return sorted(FACE)


def _show_results() -> None:
    # In its cells, results show themselves. IPython may be imported after this package, so it is
    # looked for more than once.
    if "IPython" in sys.modules:
        from workbench.views import display

        display.register()


_show_results()
