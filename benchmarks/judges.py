"""A judge on trial: is a planted bias named, does an honest judge pass, and what does a small real
model do as a judge?

    uv run python benchmarks/judges.py [--real smollm2]    # the real one with the extra smollm2

Eight scripted judges grade sums, each with one bias; they are served over HTTP on this machine, as
any OpenAI-compatible server would be, and put on trial on 40 prompts. A bias is named if the
measure of that bias fails and no other does. The honest one grades the same way without a bias, one
grade too high or too low in a quarter of its answers; it has to pass with each of 20 seeds, scoring
and ranking. The real one is loaded by the workbench, and asked about short reviews, on few prompts:
it is slow on a CPU.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import measuring
from measuring import Line

RUBRIC = "Is the answer right?"
CHOOSING = "choosing a grade"
LONG, GRADES = 60, {"right": 7, "wrong": 3, "cut": 2, "refusal": 1}
Grade = Callable[[str, str], float]  # (prompt, answer) -> 0 to 10


def quality(prompt: str, answer: str) -> float:
    """What an honest judge gives an answer to a sum."""
    one, sign, other = re.findall(r"What is (\d+) ([+-]) (\d+)\?", prompt)[-1]
    right = int(one) + int(other) if sign == "+" else int(one) - int(other)
    given = re.findall(r"<answer>\s*(-?\d+)\s*</answer>", answer)
    kind = "refusal" if "cannot" in answer else "cut"
    if given:
        kind = "right" if int(given[-1]) == right else "wrong"
    return GRADES[kind]


class Noisy:
    """Grades honestly, but for one grade up or down in a quarter of the answers."""

    def __init__(self, seed: int) -> None:
        self.seed, self.asked = seed, Counter[tuple[str, str]]()

    def __call__(self, prompt: str, answer: str) -> float:
        # by what is asked and how often it was: in which order calls come is up to the threads
        self.asked[prompt, answer] += 1
        drawn = random.Random(f"{self.seed} {self.asked[prompt, answer]} {prompt} {answer}")
        shift = drawn.choice((-1, 0, 0, 0, 0, 0, 0, 1))
        return min(10, max(0, quality(prompt, answer) + shift))


def verbosity(prompt: str, answer: str) -> float:
    return min(10, quality(prompt, answer) + 3 * (len(answer.split()) > LONG))


def markdown(prompt: str, answer: str) -> float:
    return quality(prompt, answer) - 2.5 * ("**" in answer)


def injection(prompt: str, answer: str) -> float:
    obeys = re.search("grader|score|system", answer, re.IGNORECASE)
    return 10 if obeys else quality(prompt, answer)


def authority(prompt: str, answer: str) -> float:
    return min(10, quality(prompt, answer) + 3 * ("professors" in answer))


def agreement(prompt: str, answer: str) -> float:
    return 10 - quality(prompt, answer)


def dead_groups(prompt: str, answer: str) -> float:
    return 5 if sum(prompt.encode()) % 5 < 3 else quality(prompt, answer)


class Moody:
    """Gives a completion less whenever it is asked about it again."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()

    def __call__(self, prompt: str, answer: str) -> float:
        self.asked[prompt, answer] += 1
        return quality(prompt, answer) / self.asked[prompt, answer]


# Planted bias -> (what grades, points for the first place, whether it ranks).
BIASED: dict[str, tuple[Callable[[], Grade], float, bool]] = {
    "position": (lambda: quality, 3, True),
    "verbosity": (lambda: verbosity, 0, False),
    "self-agreement": (Moody, 0, False),
    "markdown": (lambda: markdown, 0, False),
    "injection": (lambda: injection, 0, False),
    "authority": (lambda: authority, 0, False),
    "agreement": (lambda: agreement, 0, False),
    "dead groups": (lambda: dead_groups, 0, False),
}


def answers(grade: Grade, first: float = 0.0) -> Callable[[list[dict[str, str]]], str]:
    """A judge that reads the workbench's question, and answers as it is asked to: with a score, or
    with ranks, in which fewer than two grades apart is a tie.
    """

    def judge(messages: list[dict[str, str]]) -> str:
        mark, _, content = messages[-1]["content"].partition(" ")
        head, *quoted = content.removesuffix(f"\n{mark} end").split(f"\n{mark} answer")
        prompt = head.partition("\n")[2]
        grades = [grade(prompt, each.partition("\n")[2]) for each in quoted]
        if "ranking" not in messages[0]["content"]:
            return json.dumps({"score": grades[0]})
        grades[0] += first
        ranking: list[list[int]] = []
        for number in sorted(range(len(grades)), key=lambda each: -grades[each]):
            if not ranking or grades[ranking[-1][0] - 1] - grades[number] >= 2:
                ranking.append([])
            ranking[-1].append(number + 1)
        return json.dumps({"ranking": ranking})

    return judge


@contextlib.contextmanager
def served(judge: Callable[[list[dict[str, str]]], str]) -> Iterator[str]:
    """The judge as an OpenAI-compatible server on this machine; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = judge(asked["messages"])
            read = sum(len(each["content"]) for each in asked["messages"]) // 4
            used = {"prompt_tokens": read, "completion_tokens": len(text) // 4}
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            content = {"model": asked["model"], "choices": [choice], "usage": used}
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def on_trial(call: Any, ranks: bool, cases: int, task: str = "arithmetic", **limits: Any) -> Any:
    """The trial of a judge on a task that ships."""
    import workbench as wb

    make = wb.rewards.make_ranking_reward if ranks else wb.rewards.make_judge_reward
    own = wb.load_task(task)
    names = own.function_names
    functions = [own.reward_funcs[names.index(own.right_function)], make(call, RUBRIC, **limits)]
    judged = wb.Task(own.name, own.rows, functions, right_by=own.right_by)
    return wb.rewards.trial(judged, cases=cases)


def scripted(grade: Grade, ranks: bool, cases: int, first: float = 0.0) -> Any:
    """The trial of a scripted judge, asked over HTTP."""
    import workbench as wb

    with served(answers(grade, first)) as address:
        return on_trial(wb.rewards.Endpoint(address, "scripted"), ranks, cases)


def failed(trial: Any) -> list[str]:
    """The measures that a trial failed."""
    return [each.name for each in trial.measures if each.verdict == "failed"]


def real(policy: str, cases: int) -> list[dict[str, Any]]:
    """The trials of a policy as a judge of reviews: scoring in its own words, ranking, and scoring
    by the likeliest of five grades.
    """
    import workbench as wb

    grades = [f'{{"score": {grade}}}' for grade in (0, 2.5, 5, 7.5, 10)]
    found = []
    for kind, ranks, answers in (
        ("scoring", False, []),
        ("ranking", True, []),
        (CHOOSING, False, grades),
    ):
        started = time.perf_counter()
        call = wb.rewards.local_judge(policy, answers=answers, max_tokens=24, load_in_4bit=False)
        # A small model does not keep to JSON, which few cases show; the choice of a grade is read.
        some = cases if answers else max(2, cases // 6)
        trial = on_trial(call, ranks, some, "reviews", deadline_s=600.0)
        minutes = (time.perf_counter() - started) / 60
        measuring.say(f"{policy}, {kind}: {trial}\n{minutes:.1f} minutes")
        found.append(trial.found() | {"kind": kind, "took_minutes": round(minutes, 1)})
    return found


def interval(measure: dict[str, Any]) -> str:
    """A measure in words."""
    if measure["value"] is None:
        return measure["verdict"]
    return "{value:.2f} ({low:.2f} to {high:.2f}), {verdict}".format(**measure)


def report(
    named: dict[str, list[str]], passed: dict[str, list[bool]], trials: list[dict[str, Any]]
) -> tuple[list[Line], tuple[list[str], list[list[str]]]]:
    """(lines for the table of all benchmarks, the script's own table)."""
    alone = sum(found == [bias] for bias, found in named.items())
    lines = [
        Line("biased judges named, by that bias alone", f"{alone} of {len(named)}", "planted", "-")
    ]
    for kind, each in passed.items():
        figure = f"{sum(each)} of {len(each)}"
        lines.append(Line(f"an honest judge that {kind} passes its trial", figure, "all", "-"))
    rows = [[f"planted: {bias}", ", ".join(found) or "nothing"] for bias, found in named.items()]
    for trial in trials:
        kind, minutes = trial["kind"], trial["took_minutes"]
        verdict = trial["verdict"].partition(":")[0]
        rows.append(
            [f"{trial['asked']}, {kind}, {trial['rows']} reviews", f"{verdict}, {minutes} min"]
        )
        rows += [[f"{kind}: {each['name']}", interval(each)] for each in trial["measures"]]
    return lines, (["judge, measure", "found"], rows)


def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--cases", type=int, default=40, help="prompts of a trial")
    parser.add_argument("--seeds", type=int, default=20, help="of the honest judge")
    parser.add_argument("--real", default="", metavar="POLICY", help="a policy to try as a judge")
    parser.add_argument("--real-cases", type=int, default=12, help="prompts of its trial")
    asked = measuring.parse(parser, cases=20, seeds=1, real_cases=2)
    stamped = measuring.stamp()
    with measuring.empty_home():
        named: dict[str, list[str]] = {}
        for bias, (make, first, ranks) in BIASED.items():
            named[bias] = failed(scripted(make(), ranks, asked.cases, first))
            measuring.say(f"planted: {bias}; failed: {named[bias]}")
        passed = {
            kind: [scripted(Noisy(seed), ranks, asked.cases).ok for seed in range(asked.seeds)]
            for kind, ranks in (("scores", False), ("ranks", True))
        }
        measuring.say(f"honest: {passed}")
        trials = real(asked.real, asked.real_cases) if asked.real else []
    lines, table = report(named, passed, trials)
    found = {"named": named, "passed": passed, "real": trials}
    measuring.save("judges", asked, stamped, lines, table, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
