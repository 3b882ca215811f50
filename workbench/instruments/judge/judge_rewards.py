"""Reward functions that ask a judge: one that scores each completion, one that ranks a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.base.errors import RewardError
from workbench.base.kinds import Function
from workbench.base.workspace import digest
from workbench.instruments.judge.judge_answers import spread_by_rank
from workbench.instruments.judge.judging import RUBRIC, Judge, Question
from workbench.rewards.answers import completion_text
from workbench.rewards.library import Scorer, named


def make_judge_reward(
    call: Function, rubric: str = RUBRIC, *, name: str = "judge_reward", **limits: Any
) -> Scorer:
    """Score each completion from 0 to 1, as a judge grades it by a rubric.

    `call` gets a text, or, if its first parameter is called `messages`, chat messages; it returns a
    text, or a `Reply` with its tokens. It may be a coroutine. `wb.rewards.Endpoint` is one for an
    OpenAI-compatible address, `wb.rewards.local_judge` one for a policy on this machine. Nothing is
    sent before a run, a trial or a score asks for it. A run wants a passed trial:
    `wb.rewards.trial`.

    >>> def call(text): return '{"score": 7}'
    >>> reward = make_judge_reward(call, "Is it polite?", cache=False)
    >>> wb.score([reward], {"prompt": "Hello?"}, ["Hi!"]).totals
    array([0.7])

    Args:
        call: asks the judge.
        rubric: what a good answer is.
        deadline_s: of one call; a recipe's `rewards.deadline_s` does not apply.
        retries: after a call that was late, or refused for now (429, 5xx, a lost connection), with
            `backoff_s` (1 s, then doubled) between them, or as long as the server asks.
        cache: keep answers by what was asked, in `judges/` of the workspace.
        max_tokens, max_cost: budget of one run or trial; BudgetError before a call that may go
            beyond it. What one may take is estimated: it may write `call.max_tokens`, else as much
            as the longest answer so far; late and lost calls count as much.
        prices: for a million tokens read, and written, in any currency.

    Raises:
        TaskError: `call` is not callable, or `max_cost` has no prices.
    """
    judge = Judge(call, rubric, ranks=False, **limits)

    async def judge_reward(
        prompts: Sequence[object], completions: Sequence[object], **kwargs: object
    ) -> list[Any]:
        pairs = zip(prompts, completions, strict=True)
        questions = [
            Question(prompt_as_text(each), (completion_text(text),)) for each, text in pairs
        ]
        answers = await judge.scores_of(questions)
        return [each if isinstance(each, RewardError) else each[0] for each in answers]

    says = f"What a judge gives by the rubric: {rubric} 0 to 1."
    return _judged(judge_reward, name, says, judge)


def make_ranking_reward(
    call: Function, rubric: str = RUBRIC, *, name: str = "ranking_reward", **limits: Any
) -> Scorer:
    """Score the completions of one prompt by their rank among each other: one call for a group.

    The best gets 1, the worst 0, the others in equal steps between; ties, and identical
    completions, share the mean of their places. They are shown in an order that follows from their
    texts. A completion that is alone has no rank, and gets no score.

    Args:
        call, rubric, limits: as for `make_judge_reward`.
    """
    judge = Judge(call, rubric, ranks=True, **limits)

    async def ranking_reward(
        prompts: Sequence[object],
        completions: Sequence[object],
        prompt_id: Sequence[str] | None = None,
        **kwargs: object,
    ) -> list[Any]:
        texts = [completion_text(each) for each in completions]
        plain = [prompt_as_text(each) for each in prompts]
        of = [*zip(plain, prompt_id or plain, strict=True)]
        starts = [at for at in range(len(of)) if not at or of[at] != of[at - 1]]
        groups = [texts[a:b] for a, b in zip(starts, [*starts[1:], len(texts)], strict=True)]
        asked = [
            Question(plain[start], shuffled(set(group)))
            for start, group in zip(starts, groups, strict=True)
        ]
        answers = iter(await judge.scores_of([each for each in asked if len(each.texts) > 1]))
        scores: list[Any] = []
        for question, group in zip(asked, groups, strict=True):
            if len(question.texts) == 1:
                scores += [0.5 if len(group) > 1 else None] * len(group)
            elif isinstance(answer := next(answers), RewardError):
                scores += [answer] * len(group)
            else:
                place = dict(zip(question.texts, answer, strict=True))
                scores += spread_by_rank([-place[text] for text in group])
        return scores

    says = f"A completion's rank in its group, as a judge ranks it by the rubric: {rubric} 0 to 1."
    return _judged(ranking_reward, name, says, judge)


def _judged(function: Function, name: str, says: str, judge: Judge) -> Scorer:
    vars(function)["judge"] = judge
    return named(function, name, says, 1.0)


def prompt_as_text(prompt: Any) -> str:
    """A prompt as a judge reads it: chat messages one after the other."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return str(prompt[0].get("content"))
    return "\n\n".join(f"[{each.get('role')}]\n{each.get('content')}" for each in prompt)


def shuffled(texts: set[str]) -> tuple[str, ...]:
    """Texts in an order that looks random, and is the same for the same texts."""
    salt = digest(*sorted(texts))
    return tuple(sorted(texts, key=lambda text: digest(salt, text)))
