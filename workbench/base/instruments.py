"""The wall: what goes beyond the five stages, and what it puts on them.

An instrument is a folder of `workbench/instruments/` and its entry here. It imports the house.
Nothing of the house imports an instrument: it asks here what its sockets hold, and does without an
instrument whose folder and entry are deleted.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

# Instrument -> socket -> what the house calls it: where it lies in the instrument's folder, a
# module, or, after a colon, a name in one.
TABLE: dict[str, dict[str, dict[str, str]]] = {
    "games": {
        "inspection": {"over_levels": "over_levels", "measure_starts": "starts"},
        "commands": {"levels": "commands"},
        "probe": {"rollouts": "starts:luck_finding"},  # what an option of the command adds
        "features": {"curriculum": "curriculum:Curriculum"},
        "tasks": {"reasoning_gym/": "gym", "textarena/": "arena"},  # by what their names begin with
        "rows": {"reasoning_gym/": "gym"},
        "shipped": {"guess_the_number": "guess_the_number", "calculator": "calculator"},
        "views": {"over_levels.OverLevels": "picture:levels_picture"},
    },
    "judge": {
        "rewards": {
            "trial": "trial",
            "make_judge_reward": "judge_rewards",
            "make_ranking_reward": "judge_rewards",
            "Reply": "judging",
            "Endpoint": "endpoint",
            "local_judge": "local",
        },
        "commands": {"trial": "commands"},
        "features": {"judge": "feature:JudgeWatch"},
        "views": {"trial.JudgeTrial": "picture:trial_view"},
    },
    "duel": {
        "inspection": {"duel": "fighting"},
        "commands": {"duel": "commands"},
        "views": {"fighting.Duel": "picture:duel_picture"},
    },
    "twin": {
        "inspection": {"twin": "growing"},
        "commands": {"twin": "commands"},
        "views": {"growing.Twin": "picture:twin_picture"},
        "why no twin": {"twin": "planning:why_no_twin"},  # (run, function to mute) -> why, or ""
    },
    "several": {
        "inspection": {"compare_runs": "comparing"},
        "views": {"comparing.Comparison": "picture:comparison_view"},
    },
    "cpu": {
        "features": {"unpadded": "unpadded:Unpadded", "generation": "generation:DecodingLoop"},
        "drawing": {"generation": "generation:outside_a_run"},
    },
    "policies": {"policies": {"smollm2": "smollm2:SMOLLM2"}},
    "checklist": {
        "face": {"checklist": "ticking"},
        "views": {"ticking.Checklist": "picture:checklist_table"},
    },
    "eval_logs": {"inspection": {"write_eval_log": "writing"}, "commands": {"logs": "commands"}},
    "records": {"inspection": {"read_record": "others"}},
}


def places_in(socket: str) -> dict[str, str]:
    """Of all instruments: what they call it -> `workbench.instruments.…`, where it is."""
    return {
        name: f"workbench.instruments.{instrument}.{place}"
        for instrument, sockets in TABLE.items()
        for name, place in sockets.get(socket, {}).items()
    }


def plugged(socket: str) -> dict[str, Any]:
    """What `places_in` names, of a socket that holds names in modules, imported: what it is called
    -> the object.
    """
    return {name: resolve_name(place) for name, place in places_in(socket).items()}
