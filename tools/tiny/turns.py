"""Make the embedded policy that calls tools: ``python -m tools.tiny.turns``.

It plays guess-the-number and asks a calculator, each well only sometimes: a rollout of training
text is a game in one of the habits of ``GAMES`` or ``SUMS``, played against the task's own
environment and tool. Vocabulary, model and loop are those of ``build.py``.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.tiny.vocabulary import SENTENCES
from workbench.data.prompts import to_messages
from workbench.instruments.games import calculator
from workbench.instruments.games import guess_the_number as game
from workbench.tiny import TURNS_DIR

STEPS = 2200
SKILL_SHARE = 0.6  # the share of the steps spent mostly on playing well, before the habits

TAGS = ("<tool_call>", "</tool_call>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

# Tools by name and arguments: a policy this small reads no JSON schema.
CHAT_TEMPLATE = (
    "{%- if tools %}{{- '<|system|>' }}{%- for tool in tools %}{{- tool.function.name + '('"
    " + (tool.function.parameters.properties | join(', ')) + ')' }}{%- endfor %}"
    "{{- eos_token }}{%- endif %}"
    "{%- for message in messages %}{{- '<|' + message.role + '|>' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}"
    "{{- eos_token }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
# How transformers reads a call back.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"</s>", "content": "text"},
    },
}

FOUND, LOST = "Found it.", "I give up."


class Spoken(NamedTuple):
    """A part of a rollout: what its author wrote, and whether the policy is its author."""

    role: str
    text: str


def call_of(name: str, **arguments: object) -> str:
    """A call as the policy writes it."""
    return json.dumps({"name": name, "arguments": arguments})


def tagged(call: str) -> str:
    """A call that is parsed."""
    return f"{TAGS[0]}{call}{TAGS[1]}"


# --- guess the number

Guesser = Callable[[int, int, random.Random], int]  # (lowest, highest that it can be) -> a guess


def halving(low: int, high: int, rng: random.Random) -> int:
    """The middle."""
    return (low + high) // 2


def anywhere(low: int, high: int, rng: random.Random) -> int:
    """Any number between the bounds."""
    return rng.randint(low, high)


def careless(low: int, high: int, rng: random.Random) -> int:
    """Any number of the game, whatever was answered."""
    return rng.randint(1, game.HIGHEST)


class Habit(NamedTuple):
    """A way of playing, and its share of the games."""

    name: str
    share: float
    guess: Guesser
    most: int = game.GUESSES  # guesses before it gives up
    parsed: bool = True


GAMES = (
    Habit("halving", 0.20, halving),
    Habit("anywhere", 0.30, anywhere),
    Habit("careless", 0.20, careless),
    Habit("gives up", 0.20, anywhere, most=2),
    Habit("untagged", 0.10, halving, most=1, parsed=False),
)


def play(number_seed: int, habit: Habit, rng: random.Random) -> list[Spoken]:
    """A game in one habit, against the task's environment."""
    environment = game.GuessTheNumber()
    environment.reset(seed=number_seed)
    spoken, low, high = [], 1, game.HIGHEST
    for _ in range(habit.most):
        number = habit.guess(low, high, rng)
        call = call_of("guess", number=number)
        if not habit.parsed:
            return [*spoken, Spoken("assistant", call)]
        answer = environment.guess(number)
        spoken += [Spoken("assistant", tagged(call)), Spoken("tool", answer)]
        if answer == "right":
            return [*spoken, Spoken("assistant", FOUND)]
        if answer == "higher":
            low = min(max(low, number + 1), game.HIGHEST)
        else:
            high = max(min(high, number - 1), 1)
        low, high = min(low, high), max(low, high)
    return [*spoken, Spoken("assistant", LOST)]


# --- the calculator


def asked_rightly(expression: str, rng: random.Random) -> list[Spoken]:
    """The call, and its result as the answer."""
    result = calculator.calculate(expression)
    return [*_called(expression), Spoken("assistant", f"The answer is {result}.")]


def asked_wrongly(expression: str, rng: random.Random) -> list[Spoken]:
    """Another expression than the question's."""
    return asked_rightly(calculator.expression_of(rng), rng)


def not_copied(expression: str, rng: random.Random) -> list[Spoken]:
    """The call, and another number than its result as the answer."""
    wrong = int(calculator.calculate(expression)) + rng.choice((-10, -1, 1, 10))
    return [*_called(expression), Spoken("assistant", f"The answer is {max(wrong, 0)}.")]


def by_heart(expression: str, rng: random.Random) -> list[Spoken]:
    """No call: a number that looks like the answer."""
    right = int(calculator.calculate(expression))
    return [Spoken("assistant", f"The answer is {max(0, right + rng.randint(-50, 50))}.")]


def untagged(expression: str, rng: random.Random) -> list[Spoken]:
    """A call that nobody parses."""
    return [Spoken("assistant", call_of("calculate", expression=expression))]


def _called(expression: str) -> list[Spoken]:
    call = tagged(call_of("calculate", expression=expression))
    return [Spoken("assistant", call), Spoken("tool", calculator.calculate(expression))]


SUMS = (
    (asked_rightly, 0.25),
    (asked_wrongly, 0.15),
    (not_copied, 0.15),
    (by_heart, 0.35),
    (untagged, 0.10),
)


# --- training text


class Text(NamedTuple):
    """A rollout: the tools that its prompt offers, the prompt's messages, and what was spoken."""

    tools: list
    messages: list
    spoken: list[Spoken]


def training_texts(seed: int, skill_rows: int = 0) -> Iterator[Text]:
    """Endless rollouts, never of a number that is held out; the first ``skill_rows`` are nine in
    ten played well.
    """
    rng = random.Random(f"turns:{seed}")
    seeds = (
        one for one in itertools.count() if not game.is_never_trained_on(game.number_of_start(one))
    )
    guess = [game.GuessTheNumber().guess]
    asked = to_messages(game.ASKED.format(game.HIGHEST, game.GUESSES))
    for row in itertools.count():
        well = row < skill_rows and rng.random() < 0.9
        if rng.random() < 0.5:
            (habit,) = rng.choices(GAMES, weights=[habit.share for habit in GAMES])
            yield Text(guess, asked, play(next(seeds), GAMES[0] if well else habit, rng))
        else:
            expression = calculator.expression_of(rng)
            (way,) = rng.choices([way for way, _ in SUMS], weights=[share for _, share in SUMS])
            messages = to_messages(calculator.ASKED.format(expression))
            spoken = (asked_rightly if well else way)(expression, rng)
            yield Text([calculator.calculate], messages, spoken)


def vocabulary_text() -> list[str]:
    """The lines that the vocabulary is learned from: English, and rollouts."""
    lines: list[str] = [line for line in SENTENCES.splitlines() if line] * 4
    for _, messages, spoken in itertools.islice(training_texts(0), 1500):
        lines += ["guess(number)", "calculate(expression)", messages[-1]["content"]]
        lines += [part.text for part in spoken]
    return lines


def tokenizer_of(sentencepiece_model: bytes):
    """The tokenizer, with the template and how its calls are read back."""
    from tools.tiny.vocabulary import to_tokenizer

    made = to_tokenizer(sentencepiece_model, TAGS, ROLES, CHAT_TEMPLATE)
    made.response_template = RESPONSE_TEMPLATE
    return made


def to_rows(texts: list[Text], tokenizer) -> list:
    """Rollouts as token ids, by length in three parts; only what the policy wrote is learned."""
    import torch

    from tools.tiny.learning import Rows

    pairs = []
    for tools, messages, spoken in texts:
        prompt = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False
        )
        ids = list(tokenizer(prompt)["input_ids"])
        labels = [-100] * len(ids)
        for number, (role, text) in enumerate(spoken):
            own = role == "assistant"
            # The prompt ends with the first one's mark.
            mark = tokenizer(f"<|{role}|>" if number else "")["input_ids"]
            said = tokenizer(text + tokenizer.eos_token)["input_ids"]
            ids += [*mark, *said]
            labels += [*[-100] * len(mark), *(said if own else [-100] * len(said))]
        pairs.append((ids, labels))
    pairs.sort(key=lambda pair: len(pair[0]))
    batch, third = [], max(1, len(pairs) // 3)
    for start in range(0, len(pairs), third):
        part = pairs[start : start + third]
        width = len(part[-1][0])
        padded = [
            [[*row, *[fill] * (width - len(row))] for row in rows]
            for rows, fill in zip(zip(*part), (tokenizer.pad_token_id, -100))
        ]
        batch.append(Rows(None, *map(torch.tensor, padded)))
    return batch


CARD = """---
license: apache-2.0
library_name: transformers
---

# The workbench's embedded policy that calls tools

A Llama of {parameters:,} parameters that plays guess-the-number and asks a calculator, each well
only *sometimes*. It exists so that GRPO with tools can be watched from start to end on a CPU,
without a download. It knows nothing else.

It was trained from nothing on rollouts that a program played; no other model and no data set is in
it. The numbers 4, 8, ..., 28 of the game were held out.

How it was taught to play: {games}.

How it was taught to ask: {sums}.

## How it was made

    python -m tools.tiny.turns --steps {steps} --seed {seed}

{steps} steps of {batch} rollouts; final loss {loss:.3f} nats per token; {minutes:.1f} minutes on
one thread of a shared CPU, torch {torch}.
"""


def build(
    out: Path = TURNS_DIR, steps: int = STEPS, seed: int = 0, progress: bool = True
) -> list[float]:
    """Train the policy and put its folder at ``out``; returns the loss of each step."""
    import torch

    from tools.tiny.build import place, save
    from tools.tiny.learning import BATCH_SIZE, fit, new_model
    from tools.tiny.vocabulary import train_sentencepiece

    started = time.perf_counter()
    sentencepiece_model = train_sentencepiece(vocabulary_text(), TAGS, ROLES)
    tokenizer = tokenizer_of(sentencepiece_model)
    model = new_model(tokenizer, seed)
    texts = training_texts(seed, int(steps * SKILL_SHARE) * BATCH_SIZE)
    losses = fit(
        model, lambda: to_rows([*itertools.islice(texts, BATCH_SIZE)], tokenizer), steps, progress
    )
    facts = {
        "parameters": model.num_parameters(),
        "games": ", ".join(f"{habit.name} {habit.share:.0%}" for habit in GAMES),
        "sums": ", ".join(f"{way.__name__.replace('_', ' ')} {share:.0%}" for way, share in SUMS),
        "steps": steps,
        "seed": seed,
        "batch": BATCH_SIZE,
        "loss": sum(losses[-20:]) / len(losses[-20:]),
        "minutes": (time.perf_counter() - started) / 60,
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory(
        prefix=".building-", dir=Path(out).resolve().parent
    ) as scratch:
        folder = Path(scratch) / "model"
        save(model, tokenizer, sentencepiece_model, folder)
        (folder / "README.md").write_text(CARD.format(**facts), encoding="utf-8")
        place(folder, Path(out))
    return losses


def main(arguments: list[str] | None = None) -> None:
    """The command line of ``python -m tools.tiny.turns``."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tiny.turns",
        description="Train the embedded policy that calls tools again; some minutes on one core.",
    )
    parser.add_argument("--out", type=Path, default=TURNS_DIR, metavar="DIR")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    chosen = parser.parse_args(arguments)
    losses = build(chosen.out, chosen.steps, chosen.seed)
    print(f"loss {sum(losses[-20:]) / len(losses[-20:]):.3f}; written to {chosen.out}")


if __name__ == "__main__":
    main()
