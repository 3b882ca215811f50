"""Guess a number from 1 to 31, in a hand-written loop."""

import random
import re

import torch

import workbench as wb

ASKED = "I think of a number from 1 to 31. You have 5 guesses."
GUESS = re.compile(r"guess\((\d{1,3})\)")
MOST_TOKENS = 110


def guess(number: int) -> str:
    """Guess the number.

    Args:
        number: your guess.
    """


def answer_of(number, text, form):
    """What the game says to a turn; None where it holds no guess."""
    found = form.search(text)
    if not found:
        return None
    said = int(found[1])
    return "right" if said == number else "higher" if said < number else "lower"


def turn_of(trainer, ids):
    """What the policy says next, as token ids."""
    with torch.no_grad():
        said = trainer.model.generate(
            input_ids=torch.tensor([ids], device=trainer.model.device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=trainer.model.device),
            do_sample=True,
            max_new_tokens=24,
            pad_token_id=trainer.processing_class.pad_token_id,
        )
    return said[0, len(ids) :].tolist()


def play(prompts, trainer, form=GUESS):
    """A game for each prompt: the policy's turn, the game's answer, the policy's next turn."""
    tokenizer = trainer.processing_class
    played = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": None, "found": []}
    for game, asked in prompts:
        number = random.Random(game["content"]).randint(1, 31)
        start = tokenizer.apply_chat_template(
            [asked], tools=[guess], add_generation_prompt=True, return_dict=False
        )
        ids, own, found = [], [], False
        while len(ids) < MOST_TOKENS:
            said = turn_of(trainer, start + ids)
            ids, own = ids + said, own + [1] * len(said)
            answer = answer_of(number, tokenizer.decode(said), form)
            if answer is None:
                break
            found = found or answer == "right"
            answered = tokenizer(f"<|tool|>{answer}</s><|assistant|>")["input_ids"]
            ids, own = ids + answered, own + [0] * len(answered)
        played["prompt_ids"].append(start)
        played["completion_ids"].append(ids)
        played["env_mask"].append(own)
        played["found"].append(found)
    return played


@wb.rewards.max_score(1.0)
def found_reward(completions, found, **columns):
    """1.0 where the number was found."""
    return [float(each) for each in found]


def games(numbers):
    return [
        {
            "prompt": [
                {"role": "system", "content": f"game {number}"},
                {"role": "user", "content": ASKED},
            ],
            "answer": "right",
        }
        for number in numbers
    ]


task = wb.Task(
    "guess",
    rows=games(range(200)),
    held_out=games(range(200, 216)),
    reward_funcs=[found_reward],
    rollout_func=play,
)
