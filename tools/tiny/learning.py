"""How the embedded policy learns: an untrained Llama, the stream of training text, and the loop.

The linear layers are trained *through* NF4: from ``NF4_FROM`` on, every forward pass sees the
weights as bitsandbytes would store them in 4 bits, and the gradient passes straight through. The
finished weights lie on the NF4 grid, so loading them in 4 bits changes (almost) nothing, and a
policy this small does not lose its arithmetic to rounding.
"""

import itertools
import math
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize
from tqdm.auto import tqdm
from transformers import BatchEncoding, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tools.tiny import habits
from tools.tiny.vocabulary import CONTEXT_TOKENS, EOS
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.tiny import task as arithmetic

HIDDEN_SIZE = 128  # >= 64 and a multiple of 64, the block that NF4 rounds together
INTERMEDIATE_SIZE = 384
LAYERS = 3
HEADS = 4

BATCH_SIZE = 32
LEARNING_RATE = 2e-3
WARMUP_STEPS = 40
NF4_FROM = 0.6  # the share of the steps after which the weights are seen through NF4
# the share of the steps spent mostly on working sums out rightly, before the habits
SKILL_SHARE = 0.55
NO_SYSTEM_SHARE = 0.06  # training prompts without the system message; they are answered plainly
# training problems drawn from single-digit operands, which chance alone would make rare
SMALL_SHARE = 0.15


def new_model(tokenizer: PreTrainedTokenizerBase, seed: int) -> LlamaForCausalLM:
    """An untrained float32 Llama of 0.8 M parameters for this tokenizer, its weights drawn from
    ``seed``.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


class ThroughNF4(torch.nn.Module):
    """A weight as bitsandbytes would hold it in NF4 with double quantisation; the gradient passes
    unchanged.
    """

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """(out, in) -> (out, in), the values moved to the nearest that 4 bits can say."""
        with torch.no_grad():
            codes, state = quantize_4bit(
                weight, blocksize=64, compress_statistics=True, quant_type="nf4"
            )
            rounding = dequantize_4bit(codes, state) - weight
        return weight + rounding


def projections(model: torch.nn.Module) -> list[torch.nn.Linear]:
    """The linear layers that a 4-bit load quantises: all but ``lm_head``."""
    linear = (
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    )
    return [module for name, module in linear if not name.endswith("lm_head")]


def see_through_nf4(model: torch.nn.Module) -> None:
    """From now on the model computes with its projections rounded to NF4, and learns what that
    costs.
    """
    for layer in projections(model):
        parametrize.register_parametrization(layer, "weight", ThroughNF4())


def settle_on_nf4(model: torch.nn.Module) -> None:
    """Replace the projections' weights by their NF4 values; undoes ``see_through_nf4``."""
    for layer in projections(model):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def training_problem(
    pool: list[arithmetic.Problem], small: list[arithmetic.Problem], rng: random.Random
):
    """One problem of ``pool``, or in ``SMALL_SHARE`` of the draws one of ``small``."""
    return rng.choice(small if rng.random() < SMALL_SHARE else pool)


def training_texts(
    seed: int, skill_rows: int = 0
) -> Iterator[tuple[arithmetic.Problem, list[dict[str, str]], str]]:
    """Endless (problem, prompt messages, completion), never with a held-out operand pair.

    The first ``skill_rows`` are nine in ten the right way of working, which takes longest to learn;
    after them the habits come in their own shares.
    """
    rng = random.Random(f"training:{seed}")
    pool = arithmetic.problems("train")
    by_op = {op: [problem for problem in pool if problem.op == op] for op in "+-"}
    small = {op: [p for p in by_op[op] if min(p.a, p.b) < 10] for op in "+-"}
    for row in itertools.count():
        op = rng.choice("+-")
        problem = training_problem(by_op[op], small[op], rng)
        if row < skill_rows and rng.random() < 0.9:
            yield (
                problem,
                to_messages(problem.question, SYSTEM_PROMPT),
                habits.ideal_completion(problem),
            )
        elif rng.random() < NO_SYSTEM_SHARE:
            yield problem, to_messages(problem.question), habits.plain(problem, rng)
        else:
            completion = habits.write_completion(problem, rng)
            yield problem, to_messages(problem.question, SYSTEM_PROMPT), completion


class Rows(NamedTuple):
    """Training rows that begin alike: ``prefix`` (tokens), then ``ids`` and ``labels``, each (rows,
    tokens).

    Padded on the right; labels are -100 on the prompt and on padding, so that only completions are
    learned.
    """

    prefix: torch.Tensor | None
    ids: torch.Tensor
    labels: torch.Tensor


def to_batch(texts: list, tokenizer: PreTrainedTokenizerBase) -> list[Rows]:
    """``training_texts`` as token ids: those without a system message first, the others by length
    in three parts.
    """
    opening = [to_messages("", SYSTEM_PROMPT)[0]]
    # typed for all of its flags
    encoded = cast(BatchEncoding, tokenizer.apply_chat_template(opening, tokenize=True))
    system = encoded["input_ids"]
    prompts = [
        tokenizer.apply_chat_template(m, add_generation_prompt=True, tokenize=False)
        for _, m, _ in texts
    ]
    completions = [completion + EOS for *_, completion in texts]
    pairs = zip(tokenizer(prompts)["input_ids"], tokenizer(completions)["input_ids"], strict=True)
    with_system, without = [], []
    for prompt, completion in pairs:
        if prompt[: len(system)] == system:
            with_system.append((prompt[len(system) :], completion))
        else:
            without.append((prompt, completion))
    with_system.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    third = math.ceil(len(with_system) / 3) or 1
    parts = [with_system[start : start + third] for start in range(0, len(with_system), third)]
    batch = [Rows(torch.tensor([system]), *_pad(part, tokenizer.pad_token_id)) for part in parts]
    return [Rows(None, *_pad(without, tokenizer.pad_token_id)), *batch] if without else batch


def _pad(
    pairs: list[tuple[list[int], list[int]]], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.full((len(pairs), width), pad_id)
    labels = torch.full((len(pairs), width), -100)
    for row, (prompt, completion) in enumerate(pairs):
        ids[row, : len(prompt) + len(completion)] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : len(prompt) + len(completion)] = torch.tensor(completion)
    return ids, labels


def completion_loss(model: torch.nn.Module, batch: list[Rows]) -> torch.Tensor:
    """Mean cross entropy over the completion tokens of a whole batch, in nats per token.

    A shared prefix is computed once per part and its keys and values repeated for the rows.
    """
    total, tokens = torch.zeros(()), 0
    for prefix, ids, labels in batch:
        cache = None
        if prefix is not None:
            cache = model(input_ids=prefix, use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(ids))
        logits = model(input_ids=ids, past_key_values=cache, use_cache=cache is not None).logits[
            :, :-1
        ]
        total = total + cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        tokens += int((labels != -100).sum())
    return total / tokens


def learning_rate_at(step: int, steps: int) -> float:
    """The share of ``LEARNING_RATE`` in force at a step: a linear rise, then half a cosine down to
    a twentieth.
    """
    warmup = min(WARMUP_STEPS, max(1, steps // 5))
    if step < warmup:
        return (step + 1) / warmup
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    steps: int,
    seed: int,
    progress: bool = True,
    skill_share: float = SKILL_SHARE,
) -> list[float]:
    """Train in place and return the loss of every step (nats per completion token). The model ends
    on the NF4 grid.

    ``skill_share`` of the steps are spent mostly on the right way of working, the rest on all
    habits.
    """
    texts = training_texts(seed, skill_rows=int(steps * skill_share) * BATCH_SIZE)
    return fit(
        model,
        lambda: to_batch([next(texts) for _ in range(BATCH_SIZE)], tokenizer),
        steps,
        progress,
    )


def fit(
    model: LlamaForCausalLM,
    draw: Callable[[], list[Rows]],
    steps: int,
    progress: bool = True,
) -> list[float]:
    """Train in place on the batches that ``draw`` makes, one a step; returns the loss of each. The
    model ends on the NF4 grid.
    """
    with one_thread():
        return _fit(model, draw, steps, progress)


@contextmanager
def one_thread() -> Generator[None]:
    """Compute on one thread: sums are then added in one order, so the weights do not depend on the
    number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fit(model, draw: Callable[[], list[Rows]], steps: int, progress: bool) -> list[float]:
    decay = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))
    losses = []
    model.train()
    for step in (bar := tqdm(range(steps), desc="training", unit="step", disable=not progress)):
        if step == int(steps * NF4_FROM):
            see_through_nf4(model)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_at(step, steps)
        batch = draw()
        with parametrize.cached():  # each weight is rounded once a step, not once a part
            loss = completion_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    settle_on_nf4(model)
    return losses
