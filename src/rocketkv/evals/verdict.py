"""Why an answer was right or wrong, in sentences: what became of the tokens that hold the answer one hoped for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rocketkv.evals.inspection import Inspection

MOST = 0.5
"""A share of the full cache's attention that counts as most of it."""


@dataclass(frozen=True)
class Place:
    """Prompt tokens from `start` to before `stop` that hold the wanted text, and what became of them.

    `kept_pairs` and `read_pairs` count layer × head pairs, as means over the place's tokens (and over the decode
    steps): which kept a token, which read it. `kept_share` and `read_share` weigh the pairs by the attention that the
    full cache pays to each token there; None without it.
    """

    start: int
    stop: int
    kept_pairs: float
    read_pairs: float
    kept_share: float | None = None
    read_share: float | None = None


@dataclass(frozen=True)
class Verdict:
    """A label of a few words, `tone` ("right", "lost", "model" or "none") and the sentences that bear it out."""

    label: str
    tone: str
    sentences: list[str]


def place_of(found: Inspection, start: int, stop: int) -> Place:
    """What became of the prompt tokens from `start` to before `stop`."""
    kept, read = found.kept[..., start:stop], found.prompt_reads()[..., start:stop]  # [L, G, tokens]
    counts = (float(kept.sum((0, 1)).mean()), float(read.sum((0, 1)).mean()))
    if found.attention is None or not (weights := found.attention[..., start:stop].astype(float)).sum():
        return Place(start, stop, *counts)
    shares = [float((weights * part).sum() / weights.sum()) for part in (kept, read)]
    return Place(start, stop, *counts, *shares)


def average_pairs(found: Inspection) -> tuple[float, float]:
    """Layer x head pairs that kept, and at a decode step read, the average prompt token."""
    whole = place_of(found, 0, found.prompt_tokens)
    return whole.kept_pairs, whole.read_pairs


def judge(
    found: Inspection,
    expected: str,
    pattern: re.Pattern[str],
    marked: Sequence[tuple[int, int]],
    answer: str,
    full_answer: str | None,
) -> Verdict:
    """The verdict on `answer`, in which `expected` was hoped for.

    Args:
        pattern: finds the expected text.
        marked: the token ranges of the prompt that hold it.
        full_answer: the full cache's answer, None if it was not run.
    """
    right = pattern.search(answer) is not None
    model_can = None if full_answer is None else pattern.search(full_answer) is not None
    sentences = [_holds(expected, right, model_can)]
    best = max((place_of(found, *span) for span in marked), key=_nearness, default=None)
    if best is not None:
        sentences += _fate(found, best, len(marked))
    else:
        sentences.append("The prompt does not hold it in these words, so that there are no tokens to follow.")
    label, tone, reason = _cause(found, best, right, model_can)
    return Verdict(label, tone, [*sentences, reason])


def describe(found: Inspection) -> Verdict:
    """What can be said where no answer was hoped for."""
    kept, read = average_pairs(found)
    return Verdict(
        "nothing to judge", "none",
        [
            f"The average prompt token was kept by {kept:,.1f} of {found.pairs:,} layer × head pairs, and read by "
            f"{read:,.1f} of them at an average decode step.",
            "Say with --expect which words the answer should hold, and their place in the prompt is followed.",
        ],
    )  # fmt: skip


def _holds(expected: str, right: bool, model_can: bool | None) -> str:
    words = f"The answer {'holds' if right else 'does not hold'} “{expected}”"
    if model_can is None:
        return f"{words}."
    if right is model_can:
        return f"{words}, and {'so does' if right else 'neither does'} the answer from the full cache."
    return f"{words}, but the answer from the full cache {'does' if model_can else 'does not'}."


def _fate(found: Inspection, best: Place, count: int) -> list[str]:
    kept, read = average_pairs(found)
    span = f"token {best.start + 1:,}" if best.stop == best.start + 1 else f"tokens {best.start + 1:,} to {best.stop:,}"
    where = "It stands once in the prompt" if count == 1 else f"Of its {count} places in the prompt the best off is"
    if found.kept.all():
        fate = (
            f"Nothing was evicted; a decode step read a token of it in {best.read_pairs:,.1f} of {found.pairs:,} "
            f"layer × head pairs (the average token: {read:,.1f})."
        )
    else:
        fate = (
            f"Stage 1 kept a token of it in {best.kept_pairs:,.1f} of {found.pairs:,} layer × head pairs (the average "
            f"token: {kept:,.1f}); a decode step read it in {best.read_pairs:,.1f} (the average token: {read:,.1f})."
        )
    sentences = [f"{where}{', ' if count == 1 else ' '}{span} of {found.prompt_tokens:,}. {fate}"]
    if best.kept_share is not None and best.read_share is not None:
        sentences.append(
            f"Of the attention that the full cache pays to it, {100 * best.kept_share:.0f} % lies in pairs that kept "
            f"it, and {100 * best.read_share:.0f} % was read."
        )
    return sentences


def _cause(found: Inspection, best: Place | None, right: bool, model_can: bool | None) -> tuple[str, str, str]:
    """Label, tone and the last sentence."""
    if right:
        return "right", "right", "The answer is right."
    own = "wrong: the model's own failure", "model"
    if found.steps == 0:
        return *own, "Its only token comes from the prompt's own pass, which reads everything."
    if found.reads_everything().all():
        return *own, "Every layer kept and read everything: the model itself fails here."
    if model_can is False:
        return *own, "The full cache fails too: compression is not what is to blame."
    if best is None:
        return "wrong", "lost", "What was lost cannot be said: expect words of the prompt's own."
    kept, read = average_pairs(found)
    if best.kept_pairs <= kept < found.pairs if best.kept_share is None else best.kept_share < MOST:
        reason = "It was evicted where it matters: a larger budget or another evictor may keep it."
        return "wrong: evicted", "lost", reason
    if best.read_pairs <= read if best.read_share is None else best.read_share < MOST:
        return "wrong: kept but not read", "lost", "It was kept but not read: the selection passed it over."
    if model_can:
        reason = "Most of it was kept and read: what lacks is the rest of it, or other tokens of the prompt."
        return "wrong: kept and read", "lost", reason
    reason = "It was kept and read: the model fails on what it saw. The full cache's answer would settle it."
    return "wrong: read, the model's own failure", "model", reason


def _nearness(place: Place) -> tuple[float, ...]:
    """How close a place came to being read; a read one before one that was only kept."""
    shares = (place.read_share, place.kept_share)
    return (*(share for share in shares if share is not None), place.read_pairs, place.kept_pairs)
