"""Multi-turn tasks by their facts, and tasks from files: SCBench's rows, Lost in the Middle, LongEval."""

import json
import re

import pytest

from rocketkv.evals.prompts import prompt_tokens
from rocketkv.evals.registry import make_task
from support.byte_model import byte_tokenizer
from support.eval_data import benchmark_data


def conversations(name, n=2, max_tokens=8000, **options):
    return list(make_task(name, **options).examples(byte_tokenizer(), max_tokens=max_tokens, n=n))


def test_key_values_are_json_and_every_turn_asks_for_another_key():
    for made in conversations("multi/kv", turns=4):
        pairs = json.loads(made.context[made.context.index("{") :])
        keys = [re.search(r'Key: "(.+)"', turn.question)[1] for turn in made.turns]
        assert len(set(keys)) == 4
        assert [(pairs[key],) for key in keys] == [turn.references for turn in made.turns]


def test_one_string_alone_has_both_ends():
    for made in conversations("multi/prefix-suffix"):
        strings = made.context.split("\n\n", 1)[1].split("\n")
        assert len(strings) == len(set(strings)) == made.meta["size"] // 3 * 3
        for turn in made.turns:
            begin, end = re.findall('"(.+?)"', turn.question)
            assert [text for text in strings if text.startswith(begin) and text.endswith(end)] == list(turn.references)
            assert any(text.startswith(begin) and not text.endswith(end) for text in strings)
            assert any(not text.startswith(begin) and text.endswith(end) for text in strings)


def test_chains_lead_from_the_value_to_every_variable():
    for made in conversations("multi/vt"):
        holds = {}
        for name, right in re.findall(r"VAR (\w+) = (.+)", made.context):
            holds[name] = holds[right.removeprefix("VAR ")] if right.startswith("VAR") else right
        for turn in made.turns:
            value = re.search(r"value (\d+)", turn.question)[1]
            assert {name for name, held in holds.items() if held == value} == set(turn.references)


def test_examples_of_a_noun_agree_and_do_not_show_the_pair_that_is_asked_for():
    task = make_task("multi/many-shot")
    for made in conversations("multi/many-shot"):
        shots = re.findall(r"Item: (\w+) (\w+)\nLabel: (\w+)", made.context)
        for number, turn in enumerate(made.turns):
            adjective, noun = re.search(r"Item: (\w+) (\w+)", turn.question).groups()
            assert {label for _, other, label in shots if other == noun} == set(turn.references)
            assert (adjective, noun) not in {shot[:2] for shot in shots}
            example = made.example(number)
            wrong = next(label for label in made.meta["labels"] if label not in turn.references)
            assert task.score(f" {turn.references[0].title()}, not {wrong}", example) == 1
            assert task.score(f" {wrong}, not {turn.references[0]}", example) == 0


def test_a_turn_is_an_example_of_its_own():
    (made,) = conversations("multi/kv", n=1)
    example = made.example(2)
    assert example.id == f"{made.id}/turn2"
    assert (example.context, example.question, example.references) == (
        made.context, made.turns[2].question, made.turns[2].references
    )  # fmt: skip
    assert example.meta["turn"] == 2


def test_rows_in_the_form_of_scbench(tmp_path):
    rows = [
        {"id": "one", "context": "Ann lives in Rome.", "multi_turns": [
            {"input": "Where does Ann live?", "answer": "Rome"}, {"input": "Who?", "answer": ["Ann", "Ann B."]}]},
        {"id": "long", "context": "x" * 5000, "multi_turns": [{"input": "?", "answer": 3}]},
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    (made,) = conversations("scbench", n=None, max_tokens=2000, data=str(path), opening="Read.\n")
    assert made.context == "Read.\nAnn lives in Rome."
    assert [turn.references for turn in made.turns] == [("Rome",), ("Ann", "Ann B.")]
    assert [len(c.turns) for c in conversations("scbench", n=None, max_tokens=9000, data=str(path))] == [2, 1]
    for metric, score in (("any", 1), ("all", 0.5), ("f1", 0.4)):
        assert make_task("scbench", data=str(path), metric=metric).score("it was ann then", made.example(1)) == score
    path.write_text('{"context": "c", "multi_turns": [{"input": "?"}]}\n')
    with pytest.raises(ValueError, match="must have input and answer"):
        conversations("scbench", data=str(path))


def test_lost_in_the_middle():
    data = benchmark_data("lost_in_the_middle/kv_75_keys.jsonl")
    task = make_task("lost-in-the-middle", data=str(data), chat=False)
    made = list(task.examples(byte_tokenizer(), max_tokens=10_000, n=3))
    for example in made:
        pairs = json.loads(example.context[example.context.index("{") :])
        assert len(pairs) == 75
        key = re.search(r'Key: "(.+)"', example.question)[1]
        assert pairs[key] == example.references[0]
        assert task.score(f' "{pairs[key].upper()}"', example) == 1
    assert not list(task.examples(byte_tokenizer(), max_tokens=3000))


def test_longeval_lines():
    task = make_task("longeval-lines", data=str(benchmark_data("longeval/lines_200.jsonl")), chat=False)
    made = list(task.examples(byte_tokenizer(), max_tokens=20_000))
    assert len(made) == 10
    for example in made:
        name = re.search(r"in line (.+?)\?", example.question)[1]
        assert re.search(rf"line {name}: REGISTER_CONTENT is <(\d+)>", example.context)[1] == example.references[0]
        assert len(prompt_tokens(byte_tokenizer(), example)) <= 20_000
    assert task.score(f"In line 3 it is <{made[0].references[0]}>.", made[0]) == 1
    assert task.score(f"{made[0].references[0]} or 7", made[0]) == 0
