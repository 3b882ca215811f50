"""Reward functions for the shape of a completion: length, style, repetition, a pattern. Like those
of `library`, they pay nothing for silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workbench.rewards.answers import Column, completion_text, extract_answer, find_answer
from workbench.rewards.library import Scorer, max_score, named, require


def make_length_reward(
    target: int,
    unit: str = "characters",
    maximum: float = 0.5,
    answer_in: str | None = "tag",
    name: str | None = None,
) -> Scorer:
    """A reward of `maximum` up to `target` "characters" of the text or "tokens" of the policy,
    falling to 0 at twice as many.

    To earn anything, a completion needs an answer in the place `answer_in`, as in `find_answer`;
    None: any text that is not blank will do, and then one letter earns the most.
    """
    require(target > 0, f"target = {target!r}", "a length is at least 1")
    rule = "a length is counted in characters or tokens"
    require(unit in ("characters", "tokens"), f"unit = {unit!r}", rule)

    def length_reward(
        completions: Column, completion_ids: Sequence[Sequence[int]] = (), **kwargs: object
    ) -> list[float]:
        texts = [completion_text(completion) for completion in completions]
        scores = []
        for text, parts in zip(texts, _parts(unit, texts, completion_ids), strict=True):
            over = max(0, len(parts) - target) / target
            earns = text.strip() if answer_in is None else find_answer(text, answer_in)
            scores.append(maximum * max(0.0, 1.0 - over) if earns else 0.0)
        return scores

    most = f"all of it within {target} {unit}, nothing at {2 * target}"
    says = f"Up to {maximum:g} for a short completion: {most}."
    return named(length_reward, name or f"length_{target}_{unit}_reward", says, maximum)


def _parts(
    unit: str, texts: Sequence[str], completion_ids: Sequence[Sequence[int]]
) -> Sequence[Sequence[object]]:
    if unit == "tokens":
        return completion_ids
    return [text.split() for text in texts] if unit == "words" else texts


# A completion without an answer earns nothing, or silence would be the best answer.
length_reward = make_length_reward(120, answer_in="only", name="length_reward")
length_reward.__doc__ += """

>>> from workbench.rewards import length_reward
>>> length_reward(["<answer>42</answer>", "." * 161 + "<answer>42</answer>", ""])
[0.5, 0.25, 0.0]
"""


@max_score(0.25)
def style_reward(completions: Column, **kwargs: object) -> list[float]:
    """0.25 if the answer block holds the bare answer: one line, no sentence, at most 20 characters;
    else 0.0.

    >>> from workbench.rewards import style_reward
    >>> style_reward(["<answer>42</answer>", "<answer>It is 42.</answer>"])
    [0.25, 0.0]
    """
    answers = [extract_answer(completion_text(completion)) or "" for completion in completions]
    return [
        0.25 if len(each) <= 20 and len(each.split()) == 1 and not each.endswith(".") else 0.0
        for each in answers
    ]


def make_repetition_reward(
    ngram: int = 3, maximum_penalty: float = 1.0, unit: str = "words", name: str | None = None
) -> Scorer:
    """A penalty from 0 to -`maximum_penalty`: the share of a completion's n-grams that stood in it
    before.

    They are of "words" between white space, or of "tokens" of the policy, for languages that do not
    part their words.
    """
    require(ngram >= 1, f"ngram = {ngram!r}", "an n-gram has at least one word")
    rule = "a penalty is given as a positive number"
    require(maximum_penalty >= 0, f"maximum_penalty = {maximum_penalty!r}", rule)
    rule = "repetition is counted in words or tokens"
    require(unit in ("words", "tokens"), f"unit = {unit!r}", rule)

    def repetition_reward(
        completions: Column, completion_ids: Sequence[Sequence[int]] = (), **kwargs: object
    ) -> list[float]:
        texts = [completion_text(completion) for completion in completions]
        scores = []
        for parts in _parts(unit, texts, completion_ids):
            total = max(0, len(parts) - ngram + 1)
            different = set(zip(*(parts[start : start + total] for start in range(ngram))))
            scores.append(0.0 - maximum_penalty * (1 - len(different) / total) if total else 0.0)
        return scores

    share = f"the share of groups of {ngram} {unit} that stood in the completion before"
    says = f"0 down to {-maximum_penalty:g}: {share}."
    return named(repetition_reward, name or f"repetition_{ngram}_{unit}_reward", says, 0.0)


repetition_reward = make_repetition_reward(name="repetition_reward")
repetition_reward.__doc__ += """

>>> from workbench.rewards import repetition_reward
>>> repetition_reward(["six times seven is forty-two", "so so so so"])
[0.0, -0.5]
"""


def make_overlong_reward(
    max_completion_tokens: int, buffer_tokens: int, name: str | None = None
) -> Scorer:
    """A penalty from 0 to -1 at the limit, max_completion_length or less, growing over its last
    `buffer_tokens` (0: at once).
    """
    limit = f"max_completion_tokens = {max_completion_tokens!r}"
    value = f"buffer_tokens = {buffer_tokens!r} before {limit}"
    require(0 <= buffer_tokens <= max_completion_tokens, value, "the buffer lies within the limit")
    free = max_completion_tokens - buffer_tokens

    def overlong_reward(completion_ids: Sequence[Sequence[int]], **kwargs: object) -> list[float]:
        return [
            0.0 - min(1.0, max(0, len(ids) - free) / (buffer_tokens or 1)) for ids in completion_ids
        ]

    says = f"0 up to {free} tokens, falling to -1 at {max_completion_tokens} tokens."
    return named(
        overlong_reward, name or f"overlong_{max_completion_tokens}_tokens_reward", says, 0.0
    )


def make_pattern_reward(
    pattern: str,
    score: float = 1.0,
    whole: bool = False,
    flags: int = re.DOTALL,
    name: str = "pattern_reward",
) -> Scorer:
    """A reward of `score` (below 0: a penalty) where a pattern is found; with `whole`, where it
    matches the whole completion.

    A pattern with nested or neighbouring repeats, `(a+)+` or `.*?x.*?y.*?z`, can take hours over
    one long completion, and nothing inside Python can stop it. So the suite runs this function in
    its worker process, with a deadline. `flags` are those of `re`: without re.DOTALL no text of
    several lines matches `.*`.
    """
    fault = "" if isinstance(pattern, str) else f"{type(pattern).__name__}, not text"
    try:
        re.compile(pattern, flags)
    except (re.error, TypeError, ValueError, OverflowError, RecursionError) as error:
        fault = fault or str(error)
    value = f"pattern = {pattern!r}: {fault}"
    rule = "a pattern is a regular expression of Python's `re`, as text"
    remedy = "correct it; `re.escape` makes a pattern of a text that is meant literally"
    require(not fault, value, rule, remedy)

    def pattern_reward(completions: Column, **kwargs: object) -> list[float]:
        # `re` keeps what it has compiled; the text of the pattern is what a hash of this function
        # can see.
        matches = re.fullmatch if whole else re.search
        texts = map(completion_text, completions)
        return [score if matches(pattern, text, flags) else 0.0 for text in texts]

    vars(pattern_reward)["runs_in_worker"] = True
    says = f"{score:g} where {'all of it matches' if whole else 'there is'} {pattern!r}."
    return named(pattern_reward, name, says, max(0.0, score))
