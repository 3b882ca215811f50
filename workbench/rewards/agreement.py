"""What runs in the worker of `compare`: math-verify.

Importing it imports sympy and reads one formula of each kind (a second or two), so every process
forked afterwards starts ready.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from math_verify import parse, verify

from workbench.base.door import Late, alarm

_WARMING = (
    (r"$\frac{1}{2}$", "1/2"),
    (r"$\sqrt{8}+\pi$", r"$2\sqrt{2}+\pi$"),
    ("$(x+1)^2$", "$x^2+2x+1$"),
    (r"$\sin(x)^2+\cos(x)^2$", "$1$"),
    ("$x=5, y=-3$", r"$\{5,-3\}$"),
    (r"$(1,2] \cup [3,\infty)$", "$[1,2]$"),
    (r"$x \le 3$", r"$3 \ge x$"),
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"$\begin{pmatrix}1&2\\3&5\end{pmatrix}$"),
    (r"$\log_2(8)+e^{x}-5!$", r"$\ln(x)+|y|-\binom{5}{2}$"),
    (r"\boxed{50\%}", "0.5"),
    ("2*3^2-(4+5)", "9.0 cm"),
)


def agrees(given: str, right: str) -> bool | None:
    """What math-verify says, without its own clock (which works only on the main thread); None if
    it fails.
    """
    try:
        # With the last, an inequality is also the interval that it describes when the interval is
        # the right answer.
        return bool(
            verify(
                _parsed(right), _parsed(given), timeout_seconds=None, allow_set_relation_comp=True
            )
        )
    except (RecursionError, MemoryError):
        # nested too deeply: not an answer that anything could be the same as
        return False
    except Exception:
        # a bug in that library must not become a 0: the caller records that the pair was not judged
        return None


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    return parse(text, parsing_timeout=None)  # ty: ignore[invalid-argument-type]  its own docstring offers None


def agrees_within(given: str, right: str, deadline_s: float) -> bool | None:
    """`agrees`, stopped after so many seconds by a TimeoutError, if on the main thread and it
    listens.
    """
    try:
        with alarm(deadline_s, again_s=0.05):
            return agrees(given, right)
    except Late:
        raise TimeoutError from None


# they warn of every text that they cannot read
for _name in ("math_verify", "latex2sympy2_extended"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
for _given, _right in _WARMING:
    agrees(_given, _right)
