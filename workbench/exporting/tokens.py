"""Token ids: the artefact's tokenizer and template, compared with those of training."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from workbench.base.errors import RunError, WorkbenchError
from workbench.base.kinds import Tokenizer
from workbench.data.rendering import prompt_text
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.exporting.merging import ended_with
from workbench.exporting.reading import Reader
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query
from workbench.training.plan.loading import load_tokenizer
from workbench.training.resuming import begun_task

_AROUND = 40  # characters, or ids, that are shown from where two texts part
_NAMES_EOS = {
    "tokenizer_config.json": "eos_token",
    "generation_config.json": "eos_token_id",
    "config.json": "eos_token_id",
}
_REMEDIES = {
    "template_lost": (
        "put the chat_template.jinja of the policy that was trained beside the weights, and export"
        " again"
    ),
    "double_bos": (
        "only one of template and loader may write BOS: set add_bos_token to false, and export"
        " again"
    ),
    "eos_missing": (
        "name the EOS tokens of training in generation_config.json and tokenizer_config.json, and"
        " export again"
    ),
    "tokenizer_differs": "export again, with the tokenizer's files of the policy that was trained",
}


def check_tokens(artefact: Artefact, reader: Reader, most: int = 1000) -> list[Check]:
    """Ids of `most` rendered held-out prompts, and of as many recorded completions: equal, or the
    first that is not.

    Training prompts fill up where fewer are held out. Where something cannot be loaded, a check
    says why.
    """
    run = artefact.run
    if run is None:
        why = "the run that it was made from is not at hand, and so neither is its tokenizer"
        return [_undecided("ids", why)]
    recipe = run.recipe()
    try:
        tokenizer = load_tokenizer(recipe.policy.name, recipe.chat_template_kwargs)
    except WorkbenchError as error:
        return [_undecided("ids", f"the tokenizer of training cannot be loaded: {error.value}")]
    checks = [_eos(artefact.path, ended_with(run, tokenizer), reader, tokenizer)]
    for name, compared in (("prompts", _prompts), ("recorded completions", _completions)):
        try:
            checks.append(compared(run, reader, tokenizer, most))
        except (WorkbenchError, LookupError) as error:
            why = f"they cannot be read: {getattr(error, 'value', error)}"
            checks.append(_undecided(f"ids of {name}", why))
    return checks


def _eos(folder: Path, ends: list[int], reader: Reader, tokenizer: Tokenizer) -> Check:
    wrong = []
    # a GGUF file has one above others
    if not {*ends} <= {*reader.ends} or getattr(reader, "eos", None) not in (None, *ends):
        wrong.append(f"{', '.join(map(str, sorted(reader.ends))) or None} as it is loaded")
    for file, key in _NAMES_EOS.items():
        with contextlib.suppress(OSError, ValueError):  # a GGUF file has none of them
            eos = json.loads((folder / file).read_text(encoding="utf-8")).get(key)
            if isinstance(eos, dict):
                eos = eos.get("content")
            wanted = {tokenizer.eos_token} if key == "eos_token" else {*ends}
            found = {*eos} if isinstance(eos, list) else {eos}
            if not wanted <= found and not (eos is None and file == "config.json"):
                wrong.append(f"{eos!r} in {file}")
    words = ", ".join(f"{each} ({tokenizer.convert_ids_to_tokens(each)})" for each in ends)
    found = "; ".join([*wrong, f"training ended completions with {words or None}"])
    return _judged("EOS", found, "eos_missing" if wrong else "")


def _prompts(run: RunDirectory, reader: Reader, tokenizer: Tokenizer, most: int) -> Check:
    if run.manifest().get("attached"):
        rule = "a run of your own trainer has no task of the workbench"
        raise RunError(f"{run.name}: {rule}", rule=rule, remedy="none is needed")
    task = begun_task(run, run.recipe())
    prompts = [row["prompt"] for row in [*task.held_out, *task.rows][:most]]
    texts = [prompt_text(prompt, tokenizer) for prompt in prompts]
    # The template writes special tokens itself; a prompt that is plain text gets those that the
    # tokenizer adds, as in TRL.
    ids = tokenizer(texts, add_special_tokens=isinstance(prompts[0], str))["input_ids"]
    bos = re.compile(f"^(?:{re.escape(tokenizer.bos_token or '')})*")
    own = (_fed(reader, *each, bos) for each in zip(prompts, texts, strict=True))
    return _same_ids("rendered prompts", texts, ids, own, tokenizer.bos_token_id)


def _fed(reader: Reader, prompt: object, text: str, bos: re.Pattern) -> list[int] | str:
    # the ids that the artefact reads for a prompt; or, if it renders another text, how
    try:
        own = reader.render(prompt)
    except Exception as error:  # a template can fail in as many ways as a program
        return f"is refused: {getattr(error, 'value', error)}"
    if own is None:
        return "finds no chat template"
    # how many BOS there are is seen in the ids, whoever added them
    own, text = bos.sub("", own), bos.sub("", text)
    return [*reader.prompt_ids(prompt)] if own == text else _parting(text, own)


def _completions(run: RunDirectory, reader: Reader, tokenizer: Tokenizer, most: int) -> Check:
    # In an order that has nothing to do with theirs in the run, and is the same every time.
    texts = query(
        run.rollouts,
        "select completion from (select distinct completion from rollouts where completion <> '')"
        f" order by hash(completion) limit {int(most)}",
    )["completion"].tolist()
    what = "recorded completions"
    if not texts:
        return _undecided(f"ids of 0 {what}", "there are none to compare")
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    own = ([*reader.ids(text)] for text in texts)
    return _same_ids(what, texts, ids, own, tokenizer.bos_token_id)


def _same_ids(
    what: str,
    texts: list[str],
    ids: list[list[int]],
    own_ids: Iterable[list[int] | str],
    bos: int | None,
) -> Check:
    name = f"ids of {len(texts):,} {what}"
    other = [each for each in zip(texts, ids, own_ids, strict=True) if each[1] != each[2]]
    if not other:
        return _judged(name, "equal")
    text, theirs, own = other[0]
    found = f"{len(other)} of {len(texts)} differ; {text[:_AROUND]!r} "
    if isinstance(own, str):
        return _judged(name, found + own, "template_lost")
    found += _parting(theirs, own)
    if bos is not None and own[:2] == [bos, bos] != theirs[:2]:
        return _judged(name, f"{found}: two BOS tokens, which training had not", "double_bos")
    return _judged(name, found, "tokenizer_differs")


def _parting(trained: Sequence[object], own: Sequence[object]) -> str:
    # Where two texts, or lists of ids, part, and what follows in each.
    pairs = enumerate(zip(trained, own, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(trained), len(own)))
    here = slice(at, at + _AROUND)
    return f"parts at {at}: {trained[here]!r} in training, {own[here]!r} here"


def _judged(name: str, found: str, cause: str = "") -> Check:
    return Check("tokens", name, not cause, found, cause, _REMEDIES.get(cause, ""))


def _undecided(name: str, why: str) -> Check:
    return Check("tokens", name, None, why)
