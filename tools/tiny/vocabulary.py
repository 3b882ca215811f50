"""The embedded policy's tokenizer: a SentencePiece vocabulary, and the fast tokenizer with exactly
its ids.
"""

import io
import random
from collections.abc import Iterable

import sentencepiece
from tokenizers import AddedToken
from transformers import LlamaTokenizer

from tools.tiny import habits
from workbench.data.prompts import SYSTEM_PROMPT
from workbench.tiny import task as arithmetic

VOCAB_SIZE = 640
CONTEXT_TOKENS = 512

UNK, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# No beginning-of-sequence token: the same ids come out of a template and of plain text, so none is
# ever doubled.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)

# Plain English for the vocabulary, so that ordinary text is more than single bytes.
SENTENCES = """
The cat sat on the warm stone wall and watched the birds in the garden.
A small model can learn a simple thing well if we give it enough time.
What is the name of the river that runs through this old town?
She opened the window, and the cold morning air came into the room.
I think that the answer is right, but let me check it once more.
There are seven days in a week and twelve months in a year.
Please write your name and the date at the top of the page.
He said that he would come back later with the other books.
How many apples are in the basket, and how many did we eat?
We walked along the beach until the sun went down behind the hills.
The teacher asked a question, and nobody wanted to speak first.
It is better to go slowly and be sure than to be fast and wrong.
First we add the ones, then the tens, and then we write the result.
If you do not know the answer, say so; it is not a problem.
My brother plays the guitar in a band that nobody has heard of yet.
The train was late again, so we had to wait for another hour.
You should use a short sentence when a short sentence is enough.
The number on the door was hard to read in the dark.
Why do some questions have more than one good answer?
They built a new bridge over the river and painted it green.
This is the best soup that I have ever had in my life.
Could you explain that again, step by step, with an example?
The children made a house of paper and sticks in the yard.
Her letter came on a Monday, three weeks after she had left.
Nothing in the report was new, but it was well written.
Give me the sum of these two numbers and show your work.
The dog ran after the ball and brought it back each time.
When the rain stopped, the streets were full of people again.
Some words are longer than others, and some are used more often.
Take the difference, carry the one, and think about the next digit.
The machine reads a line, thinks about it, and writes an answer.
We have to find out which of the two results is correct.
Every format has its rules, and every rule has a reason.
A good reward tells the learner what it should do next.
Do you want to see the final result or only the first part?
It was the middle of the night when the phone began to ring.
The old man told us a story about the sea and a lost ship.
I would like a cup of tea, please, with a little milk.
Most of the work was finished before the summer came.
Look at the picture on the left and describe what you see.
The price went up by five percent in the last two years.
Everyone agreed that the plan was good, and then no one followed it.
You can train a network on a laptop, given patience and a small network.
Between the mountains there is a valley with a single road.
The doctor was kind, and she answered all of our questions.
Which country has the largest number of lakes in the world?
In the end we decided to stay at home and play cards.
The computer on my desk is older than some of my students.
He counted the money twice, because the first count seemed wrong.
This sentence has no purpose other than to be different from the others.
Try it again with a larger value and compare the two outputs.
The library is open from nine in the morning until six at night.
She wrote a program that could subtract, and then taught it to add.
Where there is a will, there is usually also an argument.
Winter is long here, but the light on the snow is beautiful.
The following text explains how the experiment was done.
After lunch we talked about music, food and the weather.
A mistake that is found early costs less than one that is found late.
Reasoning is useful only if the answer that follows from it is right.
Respond in the same language as the question, and keep it brief.
"""


def vocabulary_text(seed: int = 0) -> list[str]:
    """The lines that the vocabulary is learned from: English, the system prompt, and completions in
    every habit.
    """
    rng = random.Random(f"vocabulary:{seed}")
    pool = arithmetic.problems("train")
    lines: list[str] = [line for line in SENTENCES.splitlines() if line] * 4
    lines += SYSTEM_PROMPT.splitlines() * 100
    for _ in range(400):
        problem = rng.choice(pool)
        lines += [problem.question, *habits.write_completion(problem, rng).splitlines()]
    return lines


def train_sentencepiece(
    lines: Iterable[str], tags: tuple[str, ...] = habits.TAGS, roles: tuple[str, ...] = ROLES
) -> bytes:
    """A SentencePiece BPE model, as the bytes of a ``tokenizer.model``.

    Nothing is normalised and every byte has a piece, so all text survives a round trip; digits stay
    single; the tags are whole, ordinary pieces, and the role markers are control pieces, which
    text can never spell.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        byte_fallback=True,
        character_coverage=1.0,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=list(tags),
        control_symbols=list(roles),
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def merges_of(pieces: list[str], ordinary: range) -> list[tuple[str, str]]:
    """The merges that rebuild SentencePiece's BPE, best first.

    A piece comes from any two pieces that spell it, and SentencePiece prefers the pair whose result
    has the lowest id, so the merges are ordered by the id of their result.
    """
    known = {pieces[index] for index in ordinary}
    return [
        (piece[:cut], piece[cut:])
        for piece in (pieces[index] for index in ordinary)
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def to_tokenizer(
    model: bytes,
    tags: tuple[str, ...] = habits.TAGS,
    roles: tuple[str, ...] = ROLES,
    chat_template: str = CHAT_TEMPLATE,
) -> LlamaTokenizer:
    """The fast tokenizer with exactly the ids of a SentencePiece model from
    ``train_sentencepiece``, of the same tags and roles.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    size = processor.get_piece_size()
    pieces = [processor.id_to_piece(index) for index in range(size)]
    last_byte = max(index for index in range(size) if processor.is_byte(index))
    tokenizer = LlamaTokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=merges_of(pieces, range(last_byte + 1, size)),
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        add_bos_token=False,
        add_eos_token=False,
        add_prefix_space=False,
        legacy=False,
        padding_side="left",
        model_max_length=CONTEXT_TOKENS,
        extra_special_tokens=[*roles],
        chat_template=chat_template,
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return tokenizer
