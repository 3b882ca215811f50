"""The hashes of the functions that ship, written down: an edit that changes one makes every older run's `continue` ask."""

from __future__ import annotations

import json
import subprocess
import sys

# Change one here only with a line in CHANGELOG.md, marked as comparability.
HASHES = {
    "correctness_reward": "b2c81f92291f",
    "lenient_correctness_reward": "e064463e2958",
    "mark_correctness_reward": "375bd6f56aee",
    "boxed_correctness_reward": "985ed7f40fe5",
    "last_line_reward": "9f8703f3c6f6",
    "closeness_reward": "755b77d49702",
    "strict_format_reward": "e23bb1bb3f87",
    "incremental_format_reward": "85c0192b4efe",
    "think_answer_format_reward": "c268ee3c6a4d",
    "length_reward": "e70aa54f6e97",
    "style_reward": "cbe4af5f435b",
    "repetition_reward": "56bc65ad7597",
    "json_schema_reward": "86a3ac74bc3b",
    "json_values_reward": "47409f48e7be",
    "json_right_reward": "23e37d03b77f",
    "countdown_reward": "9bf1d0171050",
    "numbers_used_reward": "5c3caf521115",
}


CODE = """
import json, workbench as wb
from workbench.rewards.hashing import reward_hash
shipped = [name for name in wb.rewards.__all__ if name.endswith("_reward") and not name.startswith("make_")]
print(json.dumps({name: reward_hash(getattr(wb.rewards, name)) for name in shipped}))
"""


def test_every_shipped_function_has_the_hash_that_is_on_record():
    # in a process of its own: what the tests change for themselves (conftest.py) is part of what a function does
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == HASHES
