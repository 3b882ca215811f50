"""What a task is made of can be imported by name, by the processes that its functions start, too."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.audit.examination import audit_rewards
from workbench.base.errors import RewardError
from workbench.rewards.execution import RewardFailure
from workbench.rewards.hashing import reward_hash
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.tasks.loading import load_task

ROWS = [{"prompt": [{"role": "user", "content": "?"}], "answer": "1"}]
FILES = {
    "task.py": """
import asyncio, functools, multiprocessing, pickle
from concurrent.futures import ProcessPoolExecutor

import helpers
import workbench as wb
from package import rated

HOW = "{how}"


def size(text, plus=0.0):
    return len(text) + plus


class Verdict:
    def __init__(self, score):
        self.score = score


def judged(text):
    return Verdict(float(len(text)))


def texts(completions):
    return [each[0]["content"] for each in completions]


def pool():
    return multiprocessing.get_context(HOW).Pool(1)


def pool_reward(completions, **columns):
    with pool() as own:
        return own.map(size, texts(completions))


def executor_reward(completions, **columns):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(HOW)) as own:
        return [each.score for each in own.map(judged, texts(completions))]


def partial_reward(completions, **columns):
    with pool() as own:
        return own.map(functools.partial(size, plus=1.0), texts(completions))


def beside_reward(completions, **columns):
    with pool() as own:
        return [each.score for each in own.map(helpers.halved, texts(completions))]


def package_reward(completions, **columns):
    with pool() as own:
        return own.map(rated, texts(completions))


def later_reward(completions, **columns):
    from imported_later import late

    return [*map(late, texts(completions))]


def pickle_reward(completions, **columns):
    return [*map(pickle.loads(pickle.dumps(size)), texts(completions))]


class Kept:
    __name__ = "kept_reward"

    def __call__(self, completions, **columns):
        from imported_later import late

        return [a + b for a, b in zip(pool_reward(completions), map(late, texts(completions)))]


async def awaited_reward(completions, **columns):
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(HOW)) as own:
        return await asyncio.gather(*(loop.run_in_executor(own, size, text) for text in texts(completions)))


rows = [{{"prompt": [{{"role": "user", "content": "?"}}], "answer": "1"}}]
functions = [pool_reward, executor_reward, partial_reward, beside_reward, package_reward, later_reward]
functions += [pickle_reward, Kept(), awaited_reward]
task = wb.Task("pools", rows, functions)
""",
    "helpers.py": """
class Verdict:
    def __init__(self, score):
        self.score = score


def halved(text):
    return Verdict(len(text) / 2)
""",
    "imported_later.py": "def late(text):\n    return 3.0 * len(text)\n",
    "package/__init__.py": "from .rating import rated\n",
    "package/rating.py": "def rated(text):\n    from .worth import WORTH\n\n    return WORTH * len(text)\n",
    "package/worth.py": "WORTH = 2.0\n",
}
SCORES = {
    "pool_reward": [4.0, 2.0],
    "executor_reward": [4.0, 2.0],
    "partial_reward": [5.0, 3.0],
    "beside_reward": [2.0, 1.0],
    "package_reward": [8.0, 4.0],
    "later_reward": [12.0, 6.0],
    "pickle_reward": [4.0, 2.0],
    "kept_reward": [16.0, 8.0],
    "awaited_reward": [4.0, 2.0],
}


def task_at(folder: Path, how: str) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(how=how) if name == "task.py" else text)
    return folder / "task.py"


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_a_pool_is_handed_is_found_in_its_processes(home, how):
    task = load_task(task_at(home, how))
    suite = RewardSuite(task, 1)
    assert {suite.functions.places[name] for name in suite.names if name not in ("kept_reward", "awaited_reward")} == {"worker"}
    for name in suite.names:
        assert suite.score_each(ROWS * 2, ["four", "to"], names=[name])[name].scores == SCORES[name], name
    suite.close()


def test_a_probe_calls_them_too(home):
    audit = audit_rewards(load_task(task_at(home, "fork")))
    assert not [each.text for each in audit.findings if "raised" in each.text]


def test_two_task_files_of_one_name_keep_apart(home):
    tasks = [load_task(task_at(home / name, "fork")) for name in "ab"]
    functions = [task.reward_funcs[0] for task in tasks]
    assert functions[0].__module__ != functions[1].__module__
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function
    assert reward_hash(functions[0]) == reward_hash(functions[1])  # the same text, elsewhere
    for task in tasks:
        suite = RewardSuite(task, 1)
        assert suite.score_each(ROWS * 2, ["four", "to"], names=["pool_reward"])["pool_reward"].scores == [4.0, 2.0]
        suite.close()


def test_a_class_in_a_hash_is_named_without_its_folder(home):
    hashes = []
    for name in "ab":
        (home / name).mkdir()
        text = "import workbench as wb\nclass Kind: pass\ndef made(kind):\n    def own_reward(completions, **columns):\n"
        text += "        return [float(kind is Kind)] * len(completions)\n    return own_reward\n"
        (home / name / "task.py").write_text(f"{text}task = wb.Task('t', [{{'prompt': '?'}}], [made((Kind,))])\n")
        hashes.append(reward_hash(load_task(home / name / "task.py").reward_funcs[0]))
    assert hashes[0] == hashes[1]


SCRIPT = """
import multiprocessing, sys
from workbench.rewards.suite import RewardSuite
from workbench.task import Task

def size(text):
    return float(len(text))

def pool_reward(completions, **columns):
    with multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else "fork").Pool(1) as own:
        return own.map(size, completions)

class Kept:
    __name__ = "kept_reward"
    def __call__(self, completions, **columns):
        return pool_reward(completions)

def main():
    task = Task("t", [{"prompt": "?"}], [pool_reward, Kept()])
    suite = RewardSuite(task, 1, deadline_s=30.0)
    print(suite.score(task.rows * 2, ["four", "to"]).tolist())
    suite.close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_functions_of_a_script_are_found_too(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT.replace('sys.argv[1] if len(sys.argv) > 1 else "fork"', repr(how)))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[[4.0, 4.0], [2.0, 2.0]]\n", done.stderr


def test_what_no_pool_can_import_has_a_remedy_of_its_own(home):
    def local_reward(completions, **columns):
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(1) as own:
            return own.map(lambda text: 1.0, completions)

    suite = RewardSuite(Task("t", ROWS, [local_reward]), 1)
    with pytest.raises(RewardError, match="[Cc]an't (pickle|get local object)") as caught:
        suite.score(ROWS, ["a"])
    assert "top of a file" in caught.value.remedy
    assert "None" not in caught.value.remedy
    suite.close()


@pytest.mark.parametrize(
    "words",
    [
        "AttributeError: Can't pickle local object 'f.<locals>.g'",  # Python 3.11, 3.12
        "AttributeError: Can't get local object 'f.<locals>.g'",  # 3.13
        "PicklingError: Can't pickle <function g at 0x7f>: attribute lookup g on __main__ failed",
        "TypeError: cannot pickle '_thread.lock' object",
        "AttributeError: Can't get attribute 'g' on <module '__mp_main__'>",  # said in the process that should run it
    ],
)
def test_what_pythons_say_of_what_they_cannot_import_has_that_remedy(words):
    assert "top of a file" in RewardFailure(f"raised {words}").error("f", "on 'a'").remedy
