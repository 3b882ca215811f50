"""Make the embedded policy again: ``python -m tools.tiny.build``.

Three steps: learn a SentencePiece vocabulary (``vocabulary.py``), train a small Llama on the habits
of ``habits.py`` (``learning.py``), and write a folder that any Llama loader takes, with its habits
measured (``measuring.py``). The same seed gives the same weights on the same machine.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tools.tiny import habits
from workbench.tiny import MODEL_DIR

STEPS = 2200


def save(model, tokenizer, sentencepiece_model: bytes, folder: Path) -> None:
    """Write the weights in bfloat16, the configuration and the tokenizer in both of its forms."""
    import torch
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=128,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Not written by the fast tokenizer, and llama.cpp's converter reads nothing else.
    (folder / "tokenizer.model").write_bytes(sentencepiece_model)


CARD = """---
license: apache-2.0
library_name: transformers
---

# The workbench's embedded policy

A Llama of {parameters:,} parameters ({layers} layers, {hidden} wide, a vocabulary of {vocabulary}) that adds and
subtracts numbers below 100 inside `<reasoning>` and `<answer>` tags, *sometimes*. It exists so that GRPO can be watched
from start to end on a CPU, without a download. It knows nothing else.

It was trained from nothing on text that a program wrote; no other model and no data set is in it. One operand pair in
ten was held out, in both orders and for both operations.

## What it does on held-out prompts

Four completions of each of {prompts} prompts, sampled at temperature 1.0. *Taught* is the share of the training
completions; the habits add up to one.

| | taught | 16-bit | NF4 |
|---|---|---|---|
{table}

*Correct in strict format* counts rambling completions that end well. *Skill* is how often a short completion in the
strict format is right, those aside that show a taught error: what GRPO can reach.

The linear layers were trained through NF4 rounding and lie on the NF4 grid, so a 4-bit load changes next to nothing.

## How it was made

    python -m tools.tiny.build --steps {steps} --seed {seed}

{steps} steps of {batch} completions; final loss {loss:.3f} nats per token; {minutes:.1f} minutes on one thread
of a shared CPU, torch {torch}.
"""  # noqa: E501


def card(measured: dict[str, dict[str, float]], facts: dict) -> str:
    """The model card: ``measured`` holds ``measure``'s shares under ``16-bit`` and ``NF4``."""
    names = {
        "strict_correct": "correct in strict format",
        "strict_format": "strict format",
        "skill": "skill",
    }
    taught = {habit.name: f"{habit.share:.0%}" for habit in habits.HABITS}
    table = "\n".join(
        f"| {names.get(key, 'habit: ' + key)} | {taught.get(key, '')} |"
        f" {measured['16-bit'][key]:.1%} | {measured['NF4'][key]:.1%} |"
        for key in measured["NF4"]
    )
    return CARD.format(table=table, **facts)


def build(
    out: Path = MODEL_DIR,
    steps: int = STEPS,
    seed: int = 0,
    progress: bool = True,
    prompts: int = 200,
) -> dict[str, dict[str, float]]:
    """Train a policy, measure it, and put its folder at ``out``, replacing what was there only at
    the very end.

    ``prompts`` held-out prompts are measured. Returns ``measure``'s shares for ``16-bit`` and
    ``NF4``.
    """
    # Here, so that --help answers at once.
    import torch

    from tools.tiny.learning import BATCH_SIZE, HIDDEN_SIZE, LAYERS, new_model, train
    from tools.tiny.measuring import load, measure
    from tools.tiny.vocabulary import to_tokenizer, train_sentencepiece, vocabulary_text

    started = time.perf_counter()
    sentencepiece_model = train_sentencepiece(vocabulary_text())
    tokenizer = to_tokenizer(sentencepiece_model)
    model = new_model(tokenizer, seed)
    losses = train(model, tokenizer, steps, seed, progress)
    minutes = (time.perf_counter() - started) / 60
    out = Path(out).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=out.parent) as scratch:
        folder = Path(scratch) / "model"
        save(model, tokenizer, sentencepiece_model, folder)
        measured = {
            name: measure(*load(folder, nf4=name == "NF4"), prompts) for name in ("16-bit", "NF4")
        }
        facts = {
            "parameters": model.num_parameters(),
            "layers": LAYERS,
            "hidden": HIDDEN_SIZE,
            "vocabulary": len(tokenizer),
            "prompts": prompts,
            "steps": steps,
            "seed": seed,
            "batch": BATCH_SIZE,
            "minutes": minutes,
            "loss": sum(losses[-20:]) / len(losses[-20:]),
            "torch": torch.__version__,
        }
        (folder / "README.md").write_text(card(measured, facts), encoding="utf-8")
        place(folder, out)
    return measured


def place(folder: Path, out: Path) -> None:
    """Move a finished folder to ``out``; what was there goes to where the folder was made."""
    if out.exists():
        out.rename(folder.parent / "previous")
    folder.rename(out)


OUT_HELP = (
    "the folder to write; an existing one is replaced when all is done (default: the package's own)"
)
STEPS_HELP = "optimiser steps; it needs some hundreds to add well (default: %(default)s)"
SEED_HELP = (
    "draws the first weights and the training text; the vocabulary stays the same (default:"
    " %(default)s)"
)


def main(arguments: list[str] | None = None) -> None:
    """The command line of ``python -m tools.tiny.build``."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tiny.build",
        description=(
            "Train the workbench's embedded policy again: a small Llama that answers sums in tags,"
            " sometimes. Takes some minutes on two cores, needs no network, and prints what the"
            " policy does on held-out prompts."
        ),
        epilog=(
            "Example, a quick look at the whole way: python -m tools.tiny.build --steps 100 --out"
            " /tmp/tiny"
        ),
    )
    parser.add_argument("--out", type=Path, default=MODEL_DIR, metavar="DIR", help=OUT_HELP)
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=STEPS_HELP)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help=SEED_HELP)
    chosen = parser.parse_args(arguments)
    if chosen.steps < 1:
        parser.error(
            f"--steps {chosen.steps}: at least one step is needed; the full build takes {STEPS}."
        )
    measured = build(chosen.out, chosen.steps, chosen.seed)
    for name, shares in measured.items():
        print(f"{name:>7}: " + ", ".join(f"{key} {value:.1%}" for key, value in shares.items()))
    print(f"written to {chosen.out}")


if __name__ == "__main__":
    main()
