"""LongBench's metrics, to the letter of its evaluation script (Bai et al., ACL 2024, arXiv:2308.14508).

Where lm-evaluation-harness's copy departs from it, the script is followed: see docs/decisions/0014.
"""

from __future__ import annotations

import difflib
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from rocketkv.evals.tasks.rouge import rouge_l

Metric = Callable[[str, str, Sequence[str]], float]
"""prediction, one reference, all classes -> from 0 to 1."""
PUNCTUATION = set(string.punctuation)


def qa_f1(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The F1 of words, each as often as it occurs, without case, punctuation and articles."""
    guessed, wanted = normalized(prediction).split(), normalized(reference).split()
    same = sum((Counter(guessed) & Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(guessed), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def rouge(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L as the `rouge` package has it."""
    return rouge_l(prediction, reference)


def classification(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """1 over the number of classes that the prediction names, if the right one is among them.

    Classes that are a part of the right one's name do not count. The original removes them from the list it walks
    through, and so leaves in every second of two in a row: that is kept, since the published numbers have it.
    """
    named = [name for name in classes if name in prediction]
    place = 0
    while place < len(named):
        if named[place] in reference and named[place] != reference:
            del named[place]
        place += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the paragraph's. Raises ValueError for a reference without one."""
    found = re.search(r"Paragraph (\d+)", reference)
    if found is None:
        raise ValueError(f'the reference {reference!r} names no paragraph: it must be like "Paragraph 3"')
    return count(prediction, found[1])


def count(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the reference."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(str(reference)) / len(numbers) if numbers else 0.0


def code_similarity(prediction: str, reference: str, classes: Sequence[str] = ()) -> float:
    """How alike the first line of code is to the reference, in whole hundredths.

    The line is the first without a backtick, # or //, after leading line breaks; none is an empty line. Likeness is
    fuzzywuzzy's ratio without python-Levenshtein: difflib's, 1 for equal texts, else 0 where one is empty.
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if line == reference:
        return 1.0
    if not line or not reference:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, line, reference).ratio()) / 100


def normalized(text: str) -> str:
    """Lower case, without punctuation and the words a, an, the; single spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def first_line(prediction: str) -> str:
    """The first line after leading line breaks; all that counts of an answer to trec, triviaqa and samsum."""
    return prediction.lstrip("\n").split("\n")[0]
