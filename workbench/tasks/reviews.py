"""Reviews: is one positive or negative, in one word? The reviews are made here, and those that are
held out are about other topics, in other words, than those that are trained on.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench.data.sources import Source
from workbench.rewards.answers import Column, completion_text
from workbench.rewards.library import max_score
from workbench.task import Row, Task
from workbench.tasks.checked import task_of

QUESTIONS = 960
ASKED = "Is this review positive or negative? Answer with one word.\n\n{}"
# topic -> its subjects and phrases; no topic shares any with another
WORDS = json.loads(Path(__file__).with_name("reviews_words.json").read_bytes())
_SALT = "reviews4:"  # of the twelve topics, it holds out three at 10 %

_NAMED = re.compile(r"\b(?:positive|negative)\b")
_DENIED = re.compile(r"(?:\b(?:not|never|neither|nor|cannot|hardly)\b|n['’]t\b)[^.!?]*$")


def _only(completion: object) -> str:
    # the one word of a completion, which may end with a full stop; empty if it says more
    text = completion_text(completion).strip().casefold().removesuffix(".")
    return text if _NAMED.fullmatch(text) else ""


def _named(completion: object) -> str:
    # the one of the two words that a completion names; empty if both, none, or one it denies
    text = completion_text(completion).casefold()
    found = [*_NAMED.finditer(text)]
    words = {match.group() for match in found}
    denied = any(_DENIED.search(text[: match.start()]) for match in found)
    return words.pop() if len(words) == 1 and not denied else ""


@max_score(1.0)
def exact_reward(completions: Column, answer: Column, **kwargs: object) -> list[float]:
    """1.0 if the completion is the right word and nothing else."""
    return [float(_only(given) == right) for given, right in zip(completions, answer)]


@max_score(1.0)
def mentions_reward(completions: Column, answer: Column, **kwargs: object) -> list[float]:
    """1.0 if the completion names the right word, without denying it, and not the other one."""
    return [float(_named(given) == right) for given, right in zip(completions, answer)]


@max_score(1.0)
def one_word_reward(completions: Column, **kwargs: object) -> list[float]:
    """1.0 if the completion is one of the two words and nothing else, right or wrong."""
    return [float(_only(given) != "") for given in completions]


def source(limit: int | None = None, seed: int = 0) -> Source:
    """`limit` reviews, half of them positive: columns `question`, `answer`, and `topic`, by which
    they are split.
    """
    return Source(
        "reviews", lambda: _reviews(limit or QUESTIONS, seed), split_by="topic", salt=_SALT
    )


def _reviews(count: int, seed: int) -> Iterator[Row]:
    random_source, piles = random.Random(seed), []
    for topic, words in WORDS.items():
        for answer in ("positive", "negative"):
            pairs = itertools.permutations(words[answer], 2)
            pile = [
                {"question": ASKED.format(f"The {subject} {one} and {other}."), "answer": answer}
                for subject, (one, other) in itertools.product(words["subjects"], pairs)
            ]
            random_source.shuffle(pile)
            piles.append([{**row, "topic": topic} for row in pile])
    yield from itertools.islice(itertools.chain.from_iterable(zip(*piles)), count)


def right_word(row: Row) -> str:
    """The reference completion of a row."""
    return row["answer"]


def task(questions: int = QUESTIONS, seed: int = 0) -> Task:
    """Reviews to be called positive or negative, in one word."""
    made = task_of(
        "reviews",
        source(questions, seed),
        (exact_reward, mentions_reward, one_word_reward),
        right_by="mentions_reward",
        format_by="one_word_reward",
        cases="cases_reviews.jsonl",
    )
    return replace(made, reward_weights=[1.0, 1.0, 0.5], ideal=right_word)
