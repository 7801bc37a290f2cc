"""Multi-turn many-shot learning: labels that only the examples in the context explain."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

from rocketkv.evals.task import Example, Turn
from rocketkv.evals.tasks.multi_turn import MultiTurn
from rocketkv.evals.tasks.words import ADJECTIVES, NOUNS

OPENING = (
    "Every item below has a label. The label depends on the noun alone, not on the adjective. Learn the labels from "
    "the examples.\n\n"
)
LABELS = ("alpha", "bravo", "delta", "omega")
EXAMPLES_PER_NOUN = 6


@dataclass(frozen=True)
class ManyShots(MultiTurn):
    """The label of a noun seen in examples, with an adjective not seen with it; every turn asks for another noun.

    Labels are given to nouns at random, so that nothing but the examples tells them. Its own task in place of
    SCBench's, whose many-shot questions come from a published dataset: give that as a file to `scbench`.
    """

    new_tokens: ClassVar[int] = 8

    @property
    def name(self) -> str:
        """multi/many-shot."""
        return "multi/many-shot"

    def draft(self, size: int, draw: random.Random) -> tuple[str, list[Turn], dict[str, Any]]:
        """As `MultiTurn.draft`; size: examples, about six of them a noun."""
        nouns = draw.sample(NOUNS, min(len(NOUNS), max(self.turns, size // EXAMPLES_PER_NOUN)))
        label = {noun: draw.choice(LABELS) for noun in nouns}
        asked = {noun: draw.choice(ADJECTIVES) for noun in nouns[: self.turns]}
        shots = []
        for place in range(size):
            noun = nouns[place % len(nouns)]
            adjective = draw.choice(ADJECTIVES)
            while adjective == asked.get(noun):
                adjective = draw.choice(ADJECTIVES)
            shots.append(f"Item: {adjective} {noun}\nLabel: {label[noun]}")
        draw.shuffle(shots)
        turns = [Turn(f"\n\nItem: {adjective} {noun}\n", (label[noun],), "Label:") for noun, adjective in asked.items()]
        return OPENING + "\n\n".join(shots), turns, {"labels": list(LABELS), "nouns": len(nouns)}

    def score(self, prediction: str, example: Example) -> float:
        """1 if the first label that the prediction names is the right one."""
        places = {label: prediction.lower().find(label) for label in LABELS}
        named = [label for label in sorted(places, key=places.__getitem__) if places[label] >= 0]
        return float(named[:1] == list(example.references))
