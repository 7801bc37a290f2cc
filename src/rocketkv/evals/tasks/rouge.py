"""ROUGE-L of whole summaries, counted as the `rouge` package 1.0.1 counts, which LongBench's numbers come from.

It departs from Lin (2004): words count once however often they occur, in the union of common subsequences as in the
lengths of both texts, sentences end at every full stop, and case is kept. No stemming.
"""

from __future__ import annotations

SMOOTHING = 1e-8


def rouge_l(prediction: str, reference: str) -> float:
    """The F1 of the words in the union of longest common subsequences; 0 where either text is empty."""
    guessed, wanted = _sentences(prediction), _sentences(reference)
    if not guessed or not wanted:
        return 0.0
    shared: set[str] = set()
    for ours in wanted:
        for theirs in guessed:
            shared |= _common_words(ours, theirs)
    recall = len(shared) / len({word for sentence in wanted for word in sentence})
    precision = len(shared) / len({word for sentence in guessed for word in sentence})
    return 2 * precision * recall / (precision + recall + SMOOTHING)


def _sentences(text: str) -> list[list[str]]:
    """The words of each part between full stops; a part of white space alone is one empty word, as in the original."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_words(first: list[str], second: list[str]) -> set[str]:
    """The words of a longest common subsequence; of several the one that walks back along `second` when in doubt."""
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above = lengths[-1]
        row = [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
        lengths.append(row)
    found = set()
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            found.add(first[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found
