"""What libraries print and warn of while a policy is loaded, and that nobody could act on."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Generator

NOISE = re.compile(
    r"Unsloth \S+: no GPU found, training on CPU .*SFTTrainer|Unsloth \(CPU\): \w+ on \d+ CPU"
    r" .*chunked CE"
    # of every checkpoint, with the name that its folder has while it is written
    r"|Unsloth: (Restored added_tokens_decoder metadata|Preserved sentencepiece asset)"
)


@contextlib.contextmanager
def own_patterns() -> Generator[None]:
    """Without PEFT's warning about a pattern that it wrote itself, for stacked experts, and that is
    effective.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The following (rank|alpha)_pattern keys did not match")
        yield


@contextlib.contextmanager
def without_noise() -> Generator[None, None, None]:
    """Leave lines of `NOISE` out of what is printed meanwhile, and print the rest afterwards."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        kept = [line for line in printed.getvalue().splitlines(True) if not NOISE.match(line)]
        print("".join(kept), end="", flush=True)
