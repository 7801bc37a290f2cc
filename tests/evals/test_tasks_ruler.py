"""RULER's facts in our generators, by hand and against rows that the original generators wrote."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rocketkv.evals.registry import expand, make_task
from rocketkv.evals.tasks import ruler_words, words
from rocketkv.evals.tasks.fitting import largest_size
from rocketkv.evals.tasks.match import string_match_all, string_match_part
from rocketkv.evals.tasks.ruler_file import split_prompt
from rocketkv.evals.tasks.ruler_words import zeta
from support.byte_model import byte_tokenizer
from support.eval_data import benchmark_data

VARIANTS = [name.removeprefix("ruler/") for name in expand("ruler")]
GENERATED = [name for name in VARIANTS if "qa" not in name]
NEEDLES = {"niah_multikey_1": 4, "niah_multivalue": 4, "niah_multiquery": 4}


def examples(variant, *, max_tokens=9000, n=2, tokenizer=None, **options):
    task = make_task(f"ruler/{variant}", **options)
    return list(task.examples(tokenizer or byte_tokenizer(), max_tokens=max_tokens, n=n))


@pytest.mark.parametrize("variant", [name for name in GENERATED if name.startswith("niah")])
def test_every_needle_is_there_once_and_the_asked_ones_are_answers(variant):
    for example in examples(variant):
        needles = example.meta["needles"]
        assert len(needles) == NEEDLES.get(variant, 1)
        assert all(example.context.count(needle) == 1 for needle in needles)
        values = [needle.removesuffix(".").rpartition(" ")[2] for needle in needles]
        asked = {"niah_multivalue": 4, "niah_multiquery": 4}.get(variant, 1)
        assert len(example.references) == asked
        assert set(example.references) <= set(values)
        if variant == "niah_multikey_1":
            key = re.search(r"number for (\S+) mentioned", example.question)[1]
            assert f"for {key} is: {example.references[0]}." in example.context
        if variant.startswith("niah_multikey_") and variant[-1] in "23":
            assert example.context.count("One of the special magic") == example.meta["size"] + 1


def test_a_chain_of_four_hops_and_a_worked_example():
    for example in examples("vt"):
        text = example.context.rpartition("Memorize and track")[2]
        chain = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text)
        value = re.search(r"value (\d+)", example.question)[1]
        names = list(example.references)
        assert [name for name, _ in chain] == names
        assert [right for _, right in chain] == [value, *names[:-1]]
        worked = re.findall(r"VAR (\w{3}) = ", example.context)
        assert f"they are:  {' '.join(worked)}\n" in example.context
        assert len(names) == len(worked) == 5


@pytest.mark.parametrize(("max_tokens", "repeats"), [(3000, (6, 1)), (9000, (30, 3))])
def test_common_words_are_ten_and_as_often_as_said(max_tokens, repeats):
    for example in examples("cwe", max_tokens=max_tokens):
        counts = Counter(re.findall(r"\d+\. (\w+)", example.context.rpartition("Below is")[2]))
        common = {word for word, count in counts.items() if count == repeats[0]}
        assert common == set(example.references)
        assert len(common) == 10
        assert {count for word, count in counts.items() if word not in common} == {repeats[1]}


def test_coded_words_follow_the_zeta_distribution():
    for example in examples("fwe"):
        counts = Counter(re.findall(r"[a-z]{6}", example.context.partition("coded words. ")[2]))
        assert [word for word, _ in counts.most_common(3)] == list(example.references)
        size = example.meta["size"]
        assert [counts[word] for word in example.references] == [int(size / zeta(2) / k**2) for k in (2, 3, 4)]
        assert example.context.count("...") == int(size / zeta(2))
    assert zeta(2) == pytest.approx(1.6449340668482264, abs=1e-12)
    assert zeta(1.2) == pytest.approx(5.591582441177750, rel=1e-9)


def test_words_beyond_the_list_are_compounds():
    import random

    found = words.distinct_words(len(words.WORDS) + 500, random.Random(0))
    assert len(set(found)) == len(words.WORDS) + 500
    with pytest.raises(ValueError, match="choose a shorter length"):
        words.distinct_words(10**7, random.Random(0))


def test_the_largest_size_by_hand():
    assert largest_size(lambda size: 10 * size, step=5, limit_tokens=99) == 5
    assert largest_size(lambda size: 10 * size, step=5, limit_tokens=100) == 10
    assert largest_size(lambda size: 10 * size, step=25, limit_tokens=99) == 6  # steps of 25, 12, 6
    assert largest_size(lambda size: 10 * size, step=5, limit_tokens=10_000, most=33) == 33
    with pytest.raises(ValueError, match="has 10 tokens and there is room for 9"):
        largest_size(lambda size: 10 * size, step=5, limit_tokens=9)


def test_matches_by_hand():
    assert string_match_all("It is ALPHA and gamma", ["alpha", "beta"]) == 0.5
    assert string_match_part("It is ALPHA", ["alpha", "beta"]) == 1
    assert string_match_part("none", ["alpha"]) == 0
    with pytest.raises(ValueError, match="at least one"):
        string_match_all("x", [])


SQUAD = {"data": [
    {"paragraphs": [
        {"context": f"City {n} of land {land} has {n * 7} towers.", "qas": [
            {"question": f"How many towers has city {n}?", "answers": [{"text": str(n * 7)}], "is_impossible": False},
            {"question": "Never?", "answers": [], "is_impossible": True}]}
        for n in range(10 * land, 10 * land + 10)]}
    for land in range(1, 4)]}  # fmt: skip
HOTPOT = [
    {"question": f"Who is older, {n}?", "answer": f"Person {n}", "supporting_facts": [[f"T{n}-8", 0], [f"T{n}-9", 0]],
     "context": [[f"T{n}-{k}", [f"Sentence {k} of {n}.", f" Person {n}." if k > 7 else " More."]] for k in range(10)]}
    for n in range(5)]  # fmt: skip


@pytest.mark.parametrize(("variant", "data", "gold"), [("qa_1", SQUAD, 1), ("qa_2", HOTPOT, 2)])
@pytest.mark.parametrize("max_tokens", [900, 2500, 100_000])
def test_documents_with_the_answer_are_always_among_those_given(tmp_path, variant, data, gold, max_tokens):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data))
    made = examples(variant, max_tokens=max_tokens, n=None, data=str(path))
    assert len(made) == (30 if variant == "qa_1" else 5)
    for example in made:
        documents = re.findall(r"Document \d+:\n", example.context)
        assert len(documents) == example.meta["documents"]
        assert len(example.meta["depths"]) == gold
        assert example.references[0] in example.context
    assert made[0].meta["documents"] == {900: 5, 2500: 20, 100_000: 30 if variant == "qa_1" else 50}[max_tokens] or (
        max_tokens < 100_000
    )


def test_question_files_of_another_format_are_named(tmp_path):
    path = tmp_path / "data.json"
    path.write_text("[1]")
    for variant, name in (("qa_1", "SQuAD"), ("qa_2", "HotpotQA")):
        with pytest.raises(ValueError, match=f"not in the format of {name}"):
            examples(variant, data=str(path))


def rows_of(variant, length):
    path = benchmark_data(f"ruler/{length}") / f"{variant}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def masked(text):
    """A text without what differs from row to row: keys, values, names."""
    for pattern in (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\d{5,7}", r"\b\w+-\w+(-\w+)*\b"):
        text = re.sub(pattern, "#", text)
    return text


@pytest.mark.parametrize("variant", GENERATED)
def test_wording_is_that_of_the_original_rows(variant):
    row = rows_of(variant, 4096)[0]
    context, question, prefix = split_prompt(row["input"], variant)
    (ours,) = examples(variant, n=1)
    assert masked(ours.question) == masked(question)
    assert masked(ours.answer_prefix) == masked(prefix)
    opening = context.lstrip().split("\n")[0] if variant != "fwe" else context[:110]
    assert ours.context.lstrip().startswith(opening)
    assert len(ours.references) == len(row["outputs"])
    if "niah" in variant:
        assert masked(ours.references[0]) == masked(row["outputs"][0]) == "#"


@pytest.mark.parametrize("variant", VARIANTS)
def test_original_rows_are_read_whole_and_their_answers_score_one(variant):
    folder = benchmark_data("ruler/4096").parent
    task = make_task(f"ruler-file/{variant}", data=str(folder))
    made = list(task.examples(byte_tokenizer(), max_tokens=4096))
    rows = rows_of(variant, 4096)
    assert [example.text for example in made] == [row["input"] for row in rows]
    for example in made:
        assert example.question and example.answer_prefix
        assert task.score(" ".join(example.references), example) == 1


@pytest.fixture
def original_sources(tmp_path, monkeypatch):
    """The essay and the words of the original's rows in place of ours; returns the essay's path."""
    text = split_prompt(rows_of("niah_single_2", 8192)[0]["input"], "niah_single_2")[0].split("\n", 1)[1]
    essay = tmp_path / "essay.txt"
    essay.write_text(re.sub(r"One of the special magic numbers for \S+ is: \d+\. ?", "", text), encoding="utf-8")
    keys = [key.split("-", 1) for row in rows_of("niah_multikey_2", 8192)
            for key in re.findall(r"numbers for (\S+-\S+) is", row["input"])]  # fmt: skip
    listed = {word for length in (4096, 8192) for row in rows_of("cwe", length)
              for word in re.findall(r"\d+\. (\S+)", row["input"])}  # fmt: skip
    monkeypatch.setattr(words, "ADJECTIVES", tuple(key[0] for key in keys))
    monkeypatch.setattr(words, "NOUNS", tuple(key[1] for key in keys))
    monkeypatch.setattr(words, "WORDS", tuple(sorted(listed)))
    return essay


@pytest.fixture(scope="module")
def qwen_tokenizer():
    """The tokenizer that the original rows were made with, from a model that was imported before."""
    from transformers import AutoTokenizer

    from rocketkv.hf import store

    for folder in sorted(Path(store.home()).glob("models/qwen2.5*")):
        return AutoTokenizer.from_pretrained(folder)
    pytest.skip("no Qwen2.5 model is imported: its tokenizer made the original rows")


@pytest.mark.model
@pytest.mark.parametrize("variant", GENERATED)
def test_lengths_are_those_of_the_original_within_one_percent(variant, original_sources, qwen_tokenizer):
    """With the original's essay and words, by its own tokenizer. cwe and fwe differ from row to row: 20 of ours."""
    options = {"haystack": str(original_sources)} if variant.startswith("niah") else {}
    n = 20 if variant in ("cwe", "fwe") else 5
    ours = examples(variant, max_tokens=4096, n=n, tokenizer=qwen_tokenizer, **options)
    mean = sum(example.meta["ruler_length"] for example in ours) / n
    rows = rows_of(variant, 4096)
    assert mean == pytest.approx(sum(row["length"] for row in rows) / len(rows), rel=0.01)


def test_steps_are_the_originals():
    assert make_task("ruler/niah_single_2").step(4096) == 500
    assert [make_task("ruler/niah_multikey_2").step(length) for length in (2048, 4096)] == [5, 25]
    assert make_task("ruler/vt").step(4096) == make_task("ruler/cwe").step(4096) == 10
    assert ruler_words.COMMON_WORDS == 10
