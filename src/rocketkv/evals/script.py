"""An example as the model reads it: tokens that all policies share, and the turns that each answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocketkv.evals.prompts import later_turn_tokens, prompt_token_parts, prompt_tokens
from rocketkv.evals.task import Conversation, Example
from rocketkv.hf.prompting import PromptError, answer_room

PROTOCOLS = ("inside", "after")
"""Where the (first) question stands: inside the prompt that is compressed, or after the compressed context."""
TURN_MODES = ("golden", "own")
"""Which earlier answers a later turn sees: the references, or what the policy itself said."""


@dataclass(frozen=True)
class ScriptTurn:
    """What is read before an answer, beside earlier answers; the example that scores it; the reference as tokens."""

    ids: tuple[int, ...]
    example: Example
    golden_ids: tuple[int, ...]


@dataclass(frozen=True)
class Script:
    """`shared_ids` are read once for all; a first turn without tokens is answered right behind them."""

    id: str
    shared_ids: tuple[int, ...]
    turns: tuple[ScriptTurn, ...]
    protocol: str
    mode: str | None

    @property
    def longest_tokens(self) -> int:
        """Prompt tokens of the last turn at most, earlier answers included, without its own answer."""
        answers = [max(len(turn.golden_ids), turn.example.max_new_tokens) for turn in self.turns[:-1]]
        return len(self.shared_ids) + sum(len(turn.ids) for turn in self.turns) + sum(answers)


def make_script(tokenizer: Any, item: Example | Conversation, *, protocol: str, mode: str | None) -> Script:
    """The tokens of an example or a conversation.

    Raises ValueError where the tokenizer has no chat template for an example that wants one.
    """
    first = item.example(0) if isinstance(item, Conversation) else item
    question: list[int]
    if protocol == "inside":
        shared, question = prompt_tokens(tokenizer, first), []
    else:
        shared, question = prompt_token_parts(tokenizer, first)
    turns = [_turn(tokenizer, question, first)]
    if isinstance(item, Conversation):
        for number in range(1, len(item.turns)):
            turns.append(_turn(tokenizer, later_turn_tokens(tokenizer, item, number), item.example(number)))
    return Script(item.id, tuple(shared), tuple(turns), protocol, mode if len(turns) > 1 else None)


def check_room(script: Script, config: Any) -> None:
    """Raise PromptError if the model's context does not hold the prompt and its answer, with the numbers."""
    room = answer_room(script.longest_tokens, config)
    wanted = script.turns[-1].example.max_new_tokens
    if room is not None and room < wanted:
        raise PromptError(
            f"example {script.id}: {script.longest_tokens:,} tokens and an answer of {wanted:,} do not fit in the "
            f"model's context: take a shorter length"
        )


def _turn(tokenizer: Any, ids: list[int], example: Example) -> ScriptTurn:
    golden = example.references[0] if example.references else ""
    # The answer follows on the prefix as a word of its own; a chat template's opening ends a line by itself.
    before = example.answer_prefix if example.chat else example.question + example.answer_prefix
    if before and not before[-1].isspace():
        golden = f" {golden.lstrip()}"
    golden_ids = tokenizer(golden, add_special_tokens=False)["input_ids"]
    return ScriptTurn(tuple(ids), example, tuple(golden_ids))
