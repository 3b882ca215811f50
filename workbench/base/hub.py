"""What the Hugging Face hub knows of a model, asked without a download's retries."""

from __future__ import annotations

from workbench.base.errors import PolicyError
from workbench.base.instruments import places_in

HUB_TIMEOUT_S = 10


def check_hub(name: str) -> None:
    """Ask whether the hub has this model: PolicyError if not, if it wants a token, or cannot be
    reached (`network` is True).
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        answered = isinstance(error, RepositoryNotFoundError)
        if isinstance(error, GatedRepoError):  # which is one of the others
            value, rule = "gated", "a gated model needs its licence accepted and a token"
            remedy = "accept it on the model's page, then set HF_TOKEN"
        elif answered:
            value = "the hub knows no such model"
            rule = "a hub name is owner/model, exactly as on its page"
            remedy = "check the spelling; a private model needs HF_TOKEN"
        else:
            value = f"the hub cannot be reached ({type(error).__name__})"
            rule = "a model that is not on this machine is downloaded from the Hugging Face hub"
            here = " or ".join(f'"{one}"' for one in ("tiny", *places_in("policies")))
            remedy = f"connect to the network, give a local folder, or use {here}"
        raise PolicyError(
            f"policy {name!r}: {value}", rule=rule, remedy=remedy, network=not answered
        ) from error
