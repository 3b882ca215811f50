"""GRPOConfig, built of checked settings: what the libraries refuse together is a RecipeError, and
what they warn of is heard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import RecipeError
from workbench.kinds import Fields
from workbench.training.settings.in_force import plain_setting

_IN_OUR_WORDS = re.compile("luspo|VESPO|importance_sampling_level='sequence'|EXPERIMENTAL")


class Built(NamedTuple):
    """A GRPOConfig, and what it was built from."""

    given: Fields
    config: Any
    heard: list[str]  # warnings


def build(
    config_class: type, given: Fields, folder: str | Path, seed: int, **more: object
) -> Built:
    """A GRPOConfig of what `normalised` gives, in which `scale_rewards` is as requested.

    Unsloth's class turns "group" into "none" where loss_type is "dr_grpo", even if it was
    requested, and the advantages recorded would not be those trained on.
    """
    # watchers show progress
    own: Fields = {"output_dir": str(folder), "seed": seed, "disable_tqdm": True}
    with taken_together() as heard:
        config = config_class(**{**given, "scale_rewards": "none"}, **own, **more)
    config.scale_rewards = plain_setting("scale_rewards", given["scale_rewards"])
    return Built(given, config, heard)


@contextlib.contextmanager
def taken_together() -> Generator[list[str], None, None]:
    """RecipeError for settings that the libraries refuse together; their warnings are appended to
    the list, each once.
    """
    heard: list[str] = []

    def hear(who: str, said: object) -> None:
        line = f"{who} warns: {' '.join(str(said).split())}"
        # A plan says some in its own words: `combinations.py`. The pins hold what is experimental.
        if line not in heard and not _IN_OUR_WORDS.search(line):
            heard.append(line)

    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: hear("TRL", record.getMessage())
    logging.getLogger("trl").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            yield heard
    except (TypeError, ValueError, AttributeError, ImportError, NotImplementedError) as error:
        raise RecipeError(
            f"grpo: {error}",
            rule="GRPOConfig and GRPOTrainer accept these settings together",
            remedy="change the setting that it names",
        ) from error
    finally:
        logging.getLogger("trl").removeHandler(handler)
    for each in warned:
        if issubclass(each.category, (UserWarning, FutureWarning)):
            _, _, inside = each.filename.replace(os.sep, "/").rpartition("/site-packages/")
            library = inside.partition("/")[0] or "Python"
            hear("TRL" if library == "trl" else library, each.message)
