"""Laws of every generated task: lengths hold, the same arguments give the same examples, right answers score 1."""

from pathlib import Path

import pytest

from rocketkv.evals.prompts import later_turn_text, prompt_parts, prompt_token_parts, prompt_tokens
from rocketkv.evals.registry import describe, expand, make_task, make_tasks, task_names
from rocketkv.evals.tasks.multi_turn import conversation_tokens
from support.byte_model import byte_tokenizer

SINGLE = ["niah", *(name for name in expand("ruler") if "qa" not in name)]
MULTI = expand("multi")
CHAT = [False, True]


def examples(name, *, max_tokens=8000, n=3, seed=42, **options):
    return list(make_task(name, **options).examples(byte_tokenizer(), max_tokens=max_tokens, n=n, seed=seed))


@pytest.mark.parametrize("chat", CHAT)
@pytest.mark.parametrize("name", SINGLE)
def test_prompt_and_answer_fit_in_the_length(name, chat):
    for example in examples(name, chat=chat):
        tokens = len(prompt_tokens(byte_tokenizer(), example)) + example.max_new_tokens
        assert 0.4 * 8000 < tokens <= 8000
        assert example.chat == chat


@pytest.mark.parametrize("chat", CHAT)
@pytest.mark.parametrize("name", MULTI)
def test_a_whole_conversation_fits_in_the_length(name, chat):
    for conversation in examples(name, chat=chat):
        assert 0.8 * 8000 < conversation_tokens(byte_tokenizer(), conversation) <= 8000
        assert len(conversation.turns) == 5


@pytest.mark.parametrize("name", SINGLE + MULTI)
def test_the_same_arguments_give_the_same_examples(name):
    first = examples(name, n=3)
    assert examples(name, n=3) == first
    assert examples(name, n=2) == first[:2]
    assert examples(name, seed=7) != first
    others = [
        *examples(name, seed=7),
        *examples(name, max_tokens=7000),
        *examples(name, chat=name not in ("niah", *MULTI)),
    ]
    if name in ("niah", *MULTI):  # these take the tokenizer's chat template if nothing is told
        assert examples(name, chat=True) == first
    assert not {example.id for example in first} & {example.id for example in others}
    assert len({example.id for example in first}) == 3


@pytest.mark.parametrize("name", SINGLE + MULTI)
def test_the_right_answer_scores_one_and_nothing_scores_zero(name):
    task = make_task(name)
    for made in examples(name):
        for example in [made.example(turn) for turn in range(5)] if task.multi_turn else [made]:
            assert task.score(", ".join(example.references), example) == 1
            assert task.score("", example) == 0
            if name != "multi/many-shot":
                assert all(reference in example.context for reference in example.references)


@pytest.mark.parametrize("name", SINGLE + MULTI)
def test_a_length_with_no_room_is_refused_with_numbers(name):
    with pytest.raises(ValueError, match="choose a longer"):
        examples(name, max_tokens=140)


@pytest.mark.parametrize("name", SINGLE + MULTI)
def test_meta_is_plain_and_says_where_the_text_comes_from(name):
    (example,) = examples(name, n=1)
    assert example.meta["task"] == name
    assert example.meta["length_tokens"] == 8000
    assert example.meta["seed"] == 42
    if name == "niah" or name in ("ruler/niah_single_2", "ruler/niah_multivalue"):
        assert example.meta["haystack"] == "pydoc"


def test_both_protocols_read_the_same_text():
    (example,) = examples("ruler/niah_single_1", n=1, max_tokens=2000)
    assert example.text == example.context + example.question + example.answer_prefix
    before, after = prompt_token_parts(byte_tokenizer(), example)
    assert before + after == prompt_tokens(byte_tokenizer(), example)
    assert byte_tokenizer().decode(after) == example.question + example.answer_prefix


def test_a_chat_template_goes_around_context_and_question():
    (example,) = examples("ruler/niah_single_1", n=1, max_tokens=2000, chat=True)
    before, after = prompt_parts(byte_tokenizer(), example)
    assert before == f"<|im_start|>user\n{example.context}"
    assert after == f"{example.question}<|im_end|>\n<|im_start|>assistant\n{example.answer_prefix.lstrip()}"


def test_a_later_turn_begins_with_the_end_of_the_earlier_answer():
    (conversation,) = examples("multi/kv", n=1, chat=True)
    asked = conversation.turns[1]
    assert later_turn_text(byte_tokenizer(), conversation, 1) == (
        f"<|im_end|>\n<|im_start|>user\n{asked.question.lstrip()}<|im_end|>\n<|im_start|>assistant\n{asked.answer_prefix}"
    )
    (plain,) = examples("multi/kv", n=1, chat=False)
    asked = plain.turns[1]
    assert later_turn_text(byte_tokenizer(), plain, 1) == f"\n\n{asked.question.lstrip()}{asked.answer_prefix}"


def test_groups_expand_and_options_reach_the_tasks_that_have_them():
    assert len(expand("ruler")) == 13
    assert len(expand("longbench")) == 16
    assert {"ruler", "longbench", "multi", "niah", "scbench"} <= set(task_names())
    tasks = make_tasks(["niah", "ruler"], {"haystack": "noise", "depths": "3"})
    assert describe(tasks[0]) == {
        "task": "niah", "depths": 3, "haystack": "noise", "chat": None, "wording": "magic"
    }  # fmt: skip
    assert [task.name for task in tasks[1:]] == expand("ruler")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["nia"], {}, "did you mean niah"),
        (["niah"], {"depth": "3"}, "did you mean depths"),
        (["niah"], {"depths": "x"}, "not a whole number"),
        (["niah"], {"depths": 0}, "below 1"),
        (["ruler/fwe"], {"alpha": "1"}, "not above 1"),
        (["multi/kv"], {"turns": "0"}, "below 1"),
    ],
)
def test_bad_names_and_options_are_refused(names, options, message):
    with pytest.raises(ValueError, match=message):
        make_tasks(names, options)


@pytest.mark.parametrize("name", ["ruler/qa_1", "longbench/trec", "scbench", "longeval-lines", "ruler-file/vt"])
def test_a_task_without_its_data_says_what_it_needs(name):
    with pytest.raises(ValueError, match="needs the option data"):
        examples(name)
    with pytest.raises(ValueError, match=r"/nowhere.* (cannot be read|does not exist)"):
        examples(name, data="/nowhere")


@pytest.fixture(scope="module")
def smollm2_tokenizer():
    """The tokenizer of SmolLM2, imported beforehand."""
    from transformers import AutoTokenizer

    from rocketkv.hf import store

    for folder in sorted(Path(store.home()).glob("models/smollm2*")):
        return AutoTokenizer.from_pretrained(folder)
    pytest.skip("SmolLM2 is not imported: `rocketkv import smollm2`")


@pytest.mark.model
@pytest.mark.parametrize("chat", CHAT)
@pytest.mark.parametrize("max_tokens", [1024, 2048])
def test_lengths_hold_with_a_real_tokenizer_and_most_of_them_are_used(smollm2_tokenizer, max_tokens, chat):
    for name in SINGLE:
        for example in make_task(name, chat=chat).examples(smollm2_tokenizer, max_tokens=max_tokens, n=2):
            tokens = len(prompt_tokens(smollm2_tokenizer, example)) + example.max_new_tokens
            assert 0.6 * max_tokens < tokens <= max_tokens, name
    for name in MULTI:
        for conversation in make_task(name, chat=chat).examples(smollm2_tokenizer, max_tokens=max_tokens, n=2):
            assert 0.8 * max_tokens < conversation_tokens(smollm2_tokenizer, conversation) <= max_tokens, name
