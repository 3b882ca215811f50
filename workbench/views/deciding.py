"""Which turn a group was decided by, and how often chance would have looked the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workbench.run.turns import POLICY, Turn

LEAST = 0.5  # of the variance, for a turn to be named
_SHUFFLES = 500


class Decided(NamedTuple):
    """Where the totals of a group part."""

    turn: int  # of the policy's turns, from 1
    share: float  # of the totals' variance that lies between what was done up to there, adjusted
    by_chance: float  # how often shuffled totals part as clearly, at this or another turn


def deciding_turn(turns: Sequence[Sequence[Turn]], totals: Sequence[float]) -> Decided | None:
    """The first of the policy's turns that accounts for half of the variance of a group's totals;
    None if no turn does, or if all members had diverged before.

    Members that called the same with the same arguments, or, without calls, wrote the same, have
    done the same. The share is adjusted (epsilon squared): it is 0 on average where what was done
    has nothing to do with the totals. In a small group it is far from 0 easily, so the same is
    asked of shuffled totals.
    """
    given = np.array(totals, dtype=float)
    if not len(turns) or not np.isfinite(given).all() or not np.ptp(given):
        return None
    paths = [[_done(turn) for turn in own if turn.author == POLICY] for own in turns]
    chance = np.random.default_rng(0)
    centred = given - given.mean()
    dealt = np.stack([centred, *(chance.permutation(centred) for _ in range(_SHUFFLES))])
    branches, shares = [0] * len(paths), []
    for turn in range(max(map(len, paths))):
        known: dict[tuple[int, str | None], int] = {}
        steps = [path[turn] if turn < len(path) else None for path in paths]
        branches = [known.setdefault(step, len(known)) for step in zip(branches, steps)]
        if len(known) == len(paths):
            break
        shares.append(_share(dealt, np.eye(len(known))[branches]))
    named = [turn for turn, share in enumerate(shares) if share[0] >= LEAST]
    if not named:
        return None
    share = shares[named[0]][0]
    as_clear = np.max(shares, axis=0)[1:] >= share - 1e-9
    return Decided(named[0] + 1, float(share), float(as_clear.mean()))


def _share(totals: np.ndarray, members: np.ndarray) -> np.ndarray:
    # [n] of centred totals [n, G]; members [G, B] is 1 where one is of a branch
    size, count = members.shape
    whole = (totals**2).sum(axis=1)
    between = ((totals @ members) ** 2 / members.sum(axis=0)).sum(axis=1)
    return 1 - (whole - between) / (size - count) / (whole / (size - 1))


def _done(turn: Turn) -> str:
    calls = [[call.name, call.arguments] for call in turn.calls]
    return json.dumps(calls, sort_keys=True, default=str) if calls else turn.text.strip()
