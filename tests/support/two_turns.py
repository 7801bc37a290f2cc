"""A text with two planted numbers: turn one asks for the first, turn two for the second, over one cache."""

import random
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocketkv.evals.demo import language_reference
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.policies.base import Policy

KEYS = ("amber-anchor", "brisk-basket", "calm-candle", "distant-desert", "eager-engine", "frosty-forest")
NEEDLES = ("The special magic number for {key} is: {number}", "The pass code of the {key} vault is: {number}")
QUESTIONS = ("What is the special magic number for {key}?", "What is the pass code of the {key} vault?")
PREFIXES = tuple(needle.removesuffix(" {number}") for needle in NEEDLES)
"""Answers begin as the planted sentences do: whether a model of 135 million words things alike is not the question."""
ANSWER_TOKENS = 14


def two_turns(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, policies: Sequence[Policy], *, seed: int, tokens: int
) -> list[tuple[bool, bool]]:
    """Whether each policy returns the first number in turn one, and the second in turn two.

    The text is read once, and every policy is a row of one batch. Turn one's answer is then forced to be right, so
    that the rows differ by what they hold alone. The numbers stand at 0.75 and 0.3 of the text.
    """
    draw = random.Random(seed)
    keys, numbers = draw.sample(KEYS, 2), [str(draw.randint(1_000_000, 9_999_999)) for _ in range(2)]
    whole = language_reference()
    start = draw.randrange(len(whole) // 2)
    words = tokenizer.decode(tokenizer(whole[start : start + 8 * tokens])["input_ids"][: tokens - 130]).split(". ")[1:]
    for needle, key, number, depth in zip(NEEDLES, keys, numbers, (0.75, 0.3), strict=True):
        words.insert(round(depth * len(words)), needle.format(key=key, number=number))
    turn = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n{prefix}"
    asked = [question.format(key=key) for question, key in zip(QUESTIONS, keys, strict=True)]
    begun = [prefix.format(key=key) for prefix, key in zip(PREFIXES, keys, strict=True)]
    first = turn.format(text=f"{'. '.join(words)}\n\n{asked[0]}", prefix=begun[0])
    second = "<|im_end|>\n" + turn.format(text=asked[1], prefix=begun[1])

    def encode(text: str) -> torch.Tensor:
        return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])

    cache = CompressedCache(model, policies, share_prompt=True)
    with attach(model), torch.inference_mode():
        logits = model(encode(first), logits_to_keep=1, **cache.kwargs).logits[:, -1]
        said = encode(f" {numbers[0]}.").expand(len(policies), -1)
        right = [logits.argmax(-1).expand(len(policies)) == said[:, 0]]
        for place in range(said.shape[1]):
            logits = model(said[:, place : place + 1], **cache.kwargs).logits[:, -1]
            if place + 1 < said.shape[1] - 1:
                right.append(logits.argmax(-1) == said[:, place + 1])
        logits = model(encode(second).expand(len(policies), -1), logits_to_keep=1, **cache.kwargs).logits[:, -1]
        found = [logits.argmax(-1)]
        for _ in range(ANSWER_TOKENS - 1):
            logits = model(found[-1][:, None], **cache.kwargs).logits[:, -1]
            found.append(logits.argmax(-1))
    texts = tokenizer.batch_decode(torch.stack(found, 1))
    firsts = torch.stack(right, 1).all(1).tolist()
    return [(one, numbers[1] in text.replace(",", "")) for one, text in zip(firsts, texts, strict=True)]
