"""vLLM through Unsloth's `fast_inference`: whether it can be had here, and what doing without it costs.

Asked for with `policy.fast_inference: true`, it is switched on when the model is loaded: vLLM takes its share of the GPU,
holds the frozen weights in it, and Unsloth trains on the very same ones. Nothing of this has been run by the workbench yet:
there was no GPU with vLLM to run it on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib import metadata

NOT_INSTALLED = "vLLM is not installed here"
# trl#3162; other published figures go from 14 times as fast (unsloth#5108) to 40 % slower (unsloth#3457).
PUBLISHED = "published, and not measured by the workbench: about twice as fast with vLLM beside the trainer (trl#3162)"
COST = f"the trainer's own model generates, slower as a rule ({PUBLISHED})"
NOT_IN_FORCE = "fast_inference = True becomes False: "  # how a loaded policy's note begins


def missing(*, imports: bool = False) -> str:
    """Why vLLM cannot be used in this process; empty if it can, as far as was looked.

    Args:
        imports: import it, too, which takes seconds, and finds what an installed one lacks. Otherwise it is only looked for.
    """
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec("vllm") is not None:
            try:
                if imports:
                    importlib.import_module("vllm")
            except Exception as error:  # a library of another CUDA is an ImportError, an OSError or a RuntimeError
                return f"vLLM is installed, and its import fails ({type(error).__name__}: {_first_line(error)})"
            return ""
    # Unsloth hides a vLLM whose compiled parts do not load, so that it looks as if it were not installed.
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
    reason = getattr(sys.modules.get("unsloth.import_fixes"), "VLLM_DISABLED_REASON", None)
    return f"vLLM {version} is installed, and cannot be imported" + (f" ({_first_line(reason)})" if reason else "")


def _first_line(said: object) -> str:
    return (str(said).strip().splitlines() or ["no reason given"])[0]


def why_not(backend: str, *, cuda: bool, missing: str) -> str:
    """Why a policy cannot be loaded with `fast_inference`; empty if it can. `missing` is what the function of that name says."""
    if backend != "unsloth":
        return "it is Unsloth's, and the backend is transformers (grpo.use_vllm: true is TRL's own vLLM)"
    return missing if cuda else "this machine has no GPU"
