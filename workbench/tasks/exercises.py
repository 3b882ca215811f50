"""Hack this reward: reward functions as well-known recipes have them, each with its flaws left in.

They are written as their recipes write them, numbers and patterns included. Find out what each pays for that nobody wanted, or
never pays, before reading their corrected counterparts in `workbench.rewards.library`. None of them belongs in a run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.data.prompts import SYSTEM_PROMPT, THINK_PROMPT, to_messages
from workbench.errors import TaskError
from workbench.task import Row, Task

QUESTIONS = (("What is 15 + 27?", "42"), ("What is 9 - 4?", "5"))


@dataclass(frozen=True)
class Exercise:
    """Reward functions to be taken apart. Printed, it is what to find out."""

    name: str  # its key in `EXERCISES`
    prompt: str  # the system prompt of a chat; or, with `{question}` in it, the text of a plain prompt
    functions: tuple[Callable[..., Any], ...]
    asks: str  # what to find out
    columns: tuple[str, ...] = ()  # beside `answer`, those that the functions read, each with the right answer in it

    @property
    def chat(self) -> bool:
        """Whether its functions were written for chat prompts."""
        return "{question}" not in self.prompt

    def rows(self, questions: Iterable[tuple[str, str]] = QUESTIONS) -> list[Row]:
        """(question, right answer) pairs as the rows that its functions were written for."""
        rows = []
        for question, answer in questions:
            prompt = to_messages(question, self.prompt) if self.chat else self.prompt.format(question=question)
            rows.append({"prompt": prompt, **dict.fromkeys(("answer", *self.columns), answer)})
        return rows

    def task(self) -> Task:
        """Its rows and functions as a task, for the lab and the audit; a TaskError says why they are not even one."""
        return Task(self.name, self.rows(), self.functions)

    @property
    def problem(self) -> str:
        """Why its functions are not even a task; empty if they are."""
        try:
            self.task()
        except TaskError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        others = [name for name in (*EXERCISES, *TRL_EXERCISES) if name != self.name]
        problem = f"not even a task: {self.problem}\n" if self.problem else ""
        return f"{problem}{self.name}: {self.asks}\n(others: {', '.join(others)})"


def reward_function_name(prompts, completions, answer=None, **kwargs):
    """The template that every one of these starts from."""
    responses = [comp[0]["content"] for comp in completions]
    return [compute_score(response) for response in responses]  # noqa: F821


def extract_final_answer(text):
    """What follows the last opening tag of the answer, up to the closing one."""
    return text.split("<answer>")[-1].split("</answer>")[0]


def correctness_reward(prompts, completions, answer, **kwargs):
    """2.0 for the right answer."""
    responses = [comp[0]["content"] for comp in completions]
    extracted = [extract_final_answer(r) for r in responses]
    return [2.0 if ans == gt else 0.0 for ans, gt in zip(extracted, answer)]


def format_reward(completions, **kwargs):
    """1.0 for reasoning and answer in their tags."""
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    responses = [comp[0]["content"] for comp in completions]
    return [1.0 if re.search(pattern, r, re.DOTALL) else 0.0 for r in responses]


def incremental_format_reward(completions, **kwargs):
    """0.25 for each tag, and a little off for text after the last one."""
    responses = [comp[0]["content"] for comp in completions]
    rewards = []
    for r in responses:
        score = sum(0.25 for tag in ["<reasoning>", "</reasoning>", "<answer>", "</answer>"] if tag in r)
        if r.count("</answer>") == 1:
            extra_text = r.split("</answer>")[-1].strip()
            score -= len(extra_text) * 0.001
        rewards.append(score)
    return rewards


def reward_length(completions, **kwargs):
    """The longer, the better."""
    return [float(len(completion)) for completion in completions]


def reward_format(completions, **kwargs):
    """1.0 for thinking and answer in their tags."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    return [1.0 if re.match(pattern, c) else 0.0 for c in completions]


def reward_len(completions, **kwargs):
    """Best at a length of 20 tokens."""
    ideal_length = 20
    return [-abs(ideal_length - len(completion)) for completion in completions]


def problem_reward(completions, answers, **kwargs):
    """1.0 for the right answer to a maths problem."""
    rewards = []
    for completion, correct_answer in zip(completions, answers):
        try:
            answer = extract_final_answer(completion)
            reward = 1.0 if answer == correct_answer else 0.0
            rewards.append(reward)
        except:  # noqa: E722
            rewards.append(0.0)
    return rewards


def think_format_reward(completions, **kwargs):
    """1.0 for thinking of more than 20 characters and an answer, 0.5 for the bare format."""
    pattern = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"
    rewards = []
    for completion in completions:
        match = re.search(pattern, completion, re.DOTALL)
        full = match and len(match.group(1).strip()) > 20 and len(match.group(2).strip()) > 0
        rewards.append(1.0 if full else 0.5 if match else 0.0)
    return rewards


def extract_answer(text):
    """What stands after the mark, if it is there."""
    return text.split("####")[-1].strip() if "####" in text else None


def math_reward_function(prompts, responses):
    """Up to 0.6 for a worked solution: the mark, some arithmetic and an answer, 0.2 each."""
    rewards = []
    for _prompt, response in zip(prompts, responses):
        reward = 0.0
        if "####" in response:
            reward += 0.2
        if any(op in response for op in ["+", "-", "*", "/", "="]):
            reward += 0.2
        predicted = extract_answer(response)
        if predicted is not None:
            reward += 0.2
            # if predicted == ground_truth:
            #     reward += 0.4
        rewards.append(reward)
    return rewards


def debug_reward(completions, **kwargs):
    """Shows what the policy writes."""
    responses = [comp[0]["content"] for comp in completions]
    for i, r in enumerate(responses[:2]):
        print(f"Response {i}: {r[:200]}...")
    return [1.0] * len(responses)


class AdaptiveReward:
    """A reward whose weight follows how often the policy succeeds."""

    def __init__(self, base_reward_func, initial_weight=1.0):
        self.func = base_reward_func
        self.weight = initial_weight

    def __call__(self, *args, **kwargs):
        return [r * self.weight for r in self.func(*args, **kwargs)]

    def adjust_weight(self, success_rate):
        """More weight to what is rarely reached, less to what nearly always is."""
        if success_rate < 0.3:
            self.weight *= 1.2
        elif success_rate > 0.8:
            self.weight *= 0.9


def strict_format_reward_func(completions, **kwargs):
    """0.5 for exactly the format that was asked for."""
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(pattern, r) else 0.0 for r in responses]


def soft_format_reward_func(completions, **kwargs):
    """0.5 for about the format that was asked for."""
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(pattern, r) else 0.0 for r in responses]


def count_xml(text):
    """0.125 for each tag on a line of its own, and a little off for text after the answer."""
    count = 0.0
    if text.count("<reasoning>\n") == 1:
        count += 0.125
    if text.count("\n</reasoning>\n") == 1:
        count += 0.125
    if text.count("\n<answer>\n") == 1:
        count += 0.125
        count -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        count += 0.125
        count -= (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return count


def xmlcount_reward_func(completions, **kwargs):
    """Up to 0.5 for the four tags."""
    return [count_xml(completion[0]["content"]) for completion in completions]


_THINK_QUESTION = THINK_PROMPT + "\n\n{question}\n"
_MARK_QUESTION = "Question: {question}\nSolve it step by step and give the final answer after ####.\nAnswer:"
_BOXED = "Think inside <think> and </think>, then give the final answer in \\boxed{}."

# fmt: off
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("template", SYSTEM_PROMPT, (reward_function_name,), "What does it take before this one scores anything?"),
    ("correctness", SYSTEM_PROMPT, (correctness_reward,),
     "Which right answers does it not pay for, in the very format that the prompt shows?"),
    ("format", SYSTEM_PROMPT, (format_reward,), "What is the shortest completion that earns everything?"),
    ("incremental_format", SYSTEM_PROMPT, (incremental_format_reward,),
     "How much can nonsense earn, and how little an honest completion?"),
    ("length", "{question}\n", (reward_length,), "What does a policy write after a thousand steps of this?"),
    ("length_in_chat", SYSTEM_PROMPT, (reward_length,), "The same function for chat prompts: what is the spread of its scores?"),
    ("think_tags", _THINK_QUESTION, (reward_format,), "Write the completion that the prompt asks for. What does it earn?"),
    ("ideal_length", "{question}\n", (reward_len,),
     "What does a policy learn to write from this one, and how bad can a single score become?"),
    ("problem", _THINK_QUESTION, (problem_reward,),
     "Give it a completion that it cannot read. How would you notice in a run?", ("answers",)),
    ("think_content", _THINK_QUESTION, (think_format_reward,),
     "It asks for content, not for tags alone. What is the cheapest content, and must the rest be empty?"),
    ("worked_maths", _MARK_QUESTION, (math_reward_function,),
     "Can a trainer call it? If it could: what does a wrong answer earn, and what a right one?"),
    ("debug", SYSTEM_PROMPT, (debug_reward,), "Useful for looking at completions. What does a policy learn from it?"),
    ("adaptive", SYSTEM_PROMPT, (AdaptiveReward(correctness_reward), AdaptiveReward(format_reward)),
     "What are the two called in the log, who calls adjust_weight, and where does the weight end?"),
    ("combination", SYSTEM_PROMPT, (incremental_format_reward, format_reward, correctness_reward),
     "What share of the most that can be earned does the best completion without a right answer earn?"),
    ("strict_and_soft", SYSTEM_PROMPT, (strict_format_reward_func, soft_format_reward_func),
     "Write the completion that the prompt asks for, with two lines of reasoning. What do the two pay?"),
    ("xml_count", SYSTEM_PROMPT, (xmlcount_reward_func,),
     "What does one more character after the answer cost, and what the last line break?"),
)
# TRL's own: the function's name in trl.rewards, what to find out, columns.
TRL_EXERCISES = {
    "trl_accuracy": ("accuracy_reward",
     "Which right answers does it pay for, and for which rows does it say nothing at all?", "solution"),
    "trl_think_format": ("think_format_reward",
     "What must stand between the tags and after them? What if the template writes the first tag itself?"),
}
# fmt: on
EXERCISES: dict[str, Exercise] = {row[0]: Exercise(*row) for row in _TABLE}

# They stand for functions that anyone wrote, patterns and all, so the suite runs them where it can stop them.
for _exercise in EXERCISES.values():
    for _function in filter(inspect.isfunction, _exercise.functions):
        _function.runs_in_worker = True


def exercise(name: str) -> Exercise:
    """A well-known flawed reward, to be taken apart in the lab. TRL's own import TRL: not before a policy is loaded on a GPU.

    Raises:
        TaskError: listing the names, if there is none of this one.

    >>> wb.exercise("format").asks
    'What is the shortest completion that earns everything?'
    """
    if name in EXERCISES:
        return EXERCISES[name]
    if name not in TRL_EXERCISES:
        remedy = f"choose from {', '.join([*EXERCISES, *TRL_EXERCISES])}"
        raise TaskError(f"exercise {name!r}", rule="an exercise is one of those that ship", remedy=remedy)
    from trl import rewards

    function, asks, *columns = TRL_EXERCISES[name]
    return Exercise(name, _BOXED, (getattr(rewards, function),), asks, tuple(columns))
