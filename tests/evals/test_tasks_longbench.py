"""LongBench: metrics against an independent copy, prompts of odd rows by hand, published rows where they are."""

import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from rocketkv.evals.prompts import prompt_tokens
from rocketkv.evals.registry import expand, make_task
from rocketkv.evals.tasks import longbench_scores
from rocketkv.evals.tasks.rouge import rouge_l
from support.byte_model import byte_tokenizer
from support.eval_data import benchmark_data

ORIGINALS = {
    "qa_f1": "qa_f1_score",
    "rouge": "rouge_score",
    "count": "count_score",
    "retrieval": "retrieval_score",
    "code_similarity": "code_sim_score",
    "classification": "classification_score",
}
FROZEN = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "longbench_scores.jsonl").open(encoding="utf-8")
]
"""Scores that the copy of LongBench's metrics in lm-evaluation-harness 0.4.13 gave these texts, which are our own; with
rouge 1.0.1 and fuzzywuzzy 0.18.0 without python-Levenshtein.
"""


@pytest.mark.parametrize("metric", ORIGINALS)
def test_scores_are_those_of_an_independent_copy(metric):
    cases = [case for case in FROZEN if case["metric"] == metric]
    assert len(cases) >= 6
    for case in cases:
        ours = getattr(longbench_scores, metric)(case["prediction"], case["reference"], case["classes"])
        assert ours == pytest.approx(case["score"], abs=1e-12), case


def independent_copy():
    """lm-evaluation-harness's file of LongBench metrics, without the harness; skips the test where it is missing."""
    harness = importlib.util.find_spec("lm_eval")
    if harness is None:
        pytest.skip("lm-evaluation-harness is not installed")
    path = Path(harness.submodule_search_locations[0]) / "tasks" / "longbench" / "metrics.py"
    spec = importlib.util.spec_from_file_location("longbench_metrics", path)
    copy = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec.loader.exec_module(copy)
        except ImportError as error:
            pytest.skip(f"lm-evaluation-harness lacks its longbench extra: {error}")
    return copy


def test_scores_of_real_texts_are_those_of_an_independent_copy():
    rows = [json.loads(line) for path in sorted(benchmark_data("longbench").glob("*.jsonl")) for line in path.open()]
    copy = independent_copy()
    answers = [answer[:1500] for row in rows for answer in row["answers"]]
    guesses = [*answers[1:], answers[0]]
    texts = [(f"{guess} {answer}"[:1500], answer) for guess, answer in zip(guesses, answers, strict=True)]
    for prediction, reference in [*zip(guesses, answers, strict=True), *texts]:
        for ours, theirs in ORIGINALS.items():
            if ours == "classification" or (ours == "retrieval" and "Paragraph " not in reference):
                continue
            wanted = getattr(copy, theirs)(prediction, reference)
            assert getattr(longbench_scores, ours)(prediction, reference) == pytest.approx(wanted, abs=1e-12)


def test_a_line_of_white_space_is_code_as_in_the_official_script():
    """lm-evaluation-harness passes over such a line; the official script takes it."""
    assert longbench_scores.code_similarity("   \nfoo", "foo") == 0.0
    assert longbench_scores.code_similarity("\n\nfoo", "foo") == 1.0
    assert longbench_scores.code_similarity(" ", " x") == 0.67


def test_rouge_counts_a_word_once():
    assert rouge_l("the cat the cat", "the cat") == pytest.approx(1, abs=1e-7)
    # "a c" of 3 and of 2 different words: precision 2/3, recall 1
    assert rouge_l("a b c", "a c") == pytest.approx(0.8, abs=1e-7)


@pytest.fixture
def folder(tmp_path):
    """LongBench's files for three tasks, with rows and prompts of our own."""
    prompts = {
        "qasper": "Read.\n{context}\n\nQuestion: {input}\n\nAnswer:",
        "trec": "Types.\n{context}\n{input}",
        "repobench-p": "Complete. \n{context}{input}Next line of code:\n",
    }
    rows = {
        "qasper": {"input": "Who {x}?", "context": "A {context} " + "word " * 300, "answers": ["Ann", "Bob"]},
        "trec": {"input": "Q: what?\nType:", "context": "Q: who?\nType: Person", "answers": ["City"],
                 "all_classes": ["City", "Person"]},
        "repobench-p": {"input": "", "context": "import os\n", "answers": ["print(os)"]},
    }  # fmt: skip
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "dataset2prompt.json").write_text(json.dumps(prompts))
    (tmp_path / "config" / "dataset2maxlen.json").write_text(json.dumps({"qasper": 128, "trec": 64, "repobench-p": 64}))
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def one(name, folder, max_tokens=4000, **options):
    task = make_task(f"longbench/{name}", data=str(folder), **options)
    (example,) = task.examples(byte_tokenizer(), max_tokens=max_tokens)
    return task, example


def test_a_prompt_is_filled_in_word_for_word(folder):
    task, example = one("qasper", folder)
    assert example.context.startswith("Read.\nA {context} word word")
    assert example.question == "\n\nQuestion: Who {x}?\n\nAnswer:"
    assert (example.max_new_tokens, example.chat, example.meta["cut"]) == (128, True, False)
    assert task.score("bob", example) == 1
    _, code = one("repobench-p", folder)
    assert code.text == "Complete. \nimport os\nNext line of code:\n"


def test_an_over_length_prompt_loses_its_middle(folder):
    _, example = one("qasper", folder, max_tokens=500)
    tokens = len(prompt_tokens(byte_tokenizer(), example))
    assert 495 <= tokens + 128 <= 500
    assert example.meta["cut"]
    assert example.context.startswith("Read.\nA {context} word")
    assert example.question == "\n\nQuestion: Who {x}?\n\nAnswer:"
    _, official = one("qasper", folder, prompt_tokens=201)
    whole = one("qasper", folder)[1].text
    assert official.text == whole[:100] + whole[-100:]
    _, deep = one("qasper", folder, prompt_tokens=20)
    assert (deep.question, deep.context) == ("", whole[:10] + whole[-10:])
    assert not list(
        make_task("longbench/qasper", data=str(folder), whole=True).examples(byte_tokenizer(), max_tokens=500)
    )


def test_few_shot_and_code_tasks_take_no_chat_template_and_one_line(folder):
    task, example = one("trec", folder, chat=True)
    assert (example.chat, example.stop) == (False, ("\n",))
    assert task.score("\nCity\nPerson", example) == 1
    assert task.score("City or Person", example) == 0.5
    assert task.score("Person\nCity", example) == 0
    assert one("repobench-p", folder, chat=True)[1].chat is False


def test_malformed_folders_are_named(folder):
    with (folder / "trec.jsonl").open("a") as file:
        file.write('{"context": "x"}\n')
    task = make_task("longbench/trec", data=str(folder))
    with pytest.raises(ValueError, match=r"trec\.jsonl, line 2: answers is missing"):
        list(task.examples(byte_tokenizer(), max_tokens=4000))
    with pytest.raises(ValueError, match="no prompt or length for lcc"):
        one("lcc", folder)


def test_published_rows_are_read_and_their_answers_score_one():
    folder = benchmark_data("longbench")
    for name in expand("longbench"):
        task = make_task(name, data=str(folder), chat=True)
        (example,) = task.examples(byte_tokenizer(), max_tokens=3000, n=1)
        assert len(prompt_tokens(byte_tokenizer(), example)) + example.max_new_tokens <= 3000
        assert task.score(f"{example.references[0]}", example) == pytest.approx(1, abs=1e-7)
        assert example.chat == (name.split("/")[1] not in ("trec", "triviaqa", "samsum", "lcc", "repobench-p"))
