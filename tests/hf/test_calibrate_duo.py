"""DuoAttention's patterns: the published files, their sizes, and heads found by a retrieval prompt."""

import pytest
import torch

from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.calibrate_duo import (
    NeedleWatcher,
    RetrievalPrompt,
    calibrate_duo,
    ranked,
    retrieval_prompt,
    save_pattern,
)
from rocketkv.hf.errors import CalibrationError
from rocketkv.hf.generate import generate
from rocketkv.policies.base import Prompt
from rocketkv.policies.duo import DuoHeads
from rocketkv.policies.head_pattern import HeadPattern, read_pattern
from rocketkv.policies.registry import make_policy
from support.models import VOCABULARY, greedy, prompt, tiny_model

TABLE = "0.9\t0.1\n0.5\t0.49\n"


class WordTokenizer:
    """A number for every distinct word, as a tokenizer of the tiny models."""

    bos_token_id = 1

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [2 + sum(map(ord, word)) % (VOCABULARY - 2) for word in text.split()]}


def test_published_folder(tmp_path) -> None:
    (tmp_path / "full_attention_heads.tsv").write_text(TABLE)
    (tmp_path / "config.json").write_text('{"sink_size": 3, "recent_size": 5}')
    expected = HeadPattern(((0.9, 0.1), (0.5, 0.49)), 3, 5)
    assert read_pattern(tmp_path) == expected
    assert read_pattern(tmp_path / "full_attention_heads.tsv") == expected
    policy = make_policy("duoattention", pattern=str(tmp_path))
    assert policy.evictor.heads == expected
    assert policy.budget_tokens == 16, "3 + 5 tokens, but never below the least budget"
    assert policy.evictor.equivalent_tokens(100) == 0.5 * 100 + 0.5 * 8
    overridden = make_policy("duoattention", pattern=str(tmp_path), sink_tokens="30", threshold="0.95")
    assert overridden.budget_tokens == 35
    assert overridden.evictor.equivalent_tokens(100) == 35
    with pytest.raises(ValueError, match="needs a budget"):
        make_policy("duoattention+quest", pattern=str(tmp_path))


def test_table_alone_has_the_usual_sizes(tmp_path) -> None:
    (tmp_path / "heads.tsv").write_text(TABLE)
    pattern = read_pattern(tmp_path / "heads.tsv")
    assert (pattern.sink_tokens, pattern.recent_tokens) == (128, 256)
    with pytest.raises(ValueError, match=r"full_attention_heads.tsv: No such file"):
        read_pattern(tmp_path)


@pytest.mark.parametrize(
    ("table", "sizes", "words"),
    [
        ("", '{"sink_size": 3, "recent_size": 5}', "as many values in every row"),
        ("1\t0\n1\n", '{"sink_size": 3, "recent_size": 5}', "as many values in every row"),
        ("1\tx\n", "{}", "not a table of numbers"),
        ("1\t1.5\n", '{"sink_size": 3, "recent_size": 5}', "outside 0 to 1"),
        ("1\tnan\n", '{"sink_size": 3, "recent_size": 5}', "outside 0 to 1"),
        (TABLE, "{}", "no sink_size and recent_size"),
        (TABLE, "[", "no sink_size and recent_size"),
        (TABLE, '{"sink_size": 3.5, "recent_size": 5}', "not whole numbers"),
        (TABLE, '{"sink_size": 3, "recent_size": 0}', "recent_tokens=0"),
        (TABLE, None, "config.json with sink_size"),
    ],
)
def test_damaged_files(table, sizes, words, tmp_path) -> None:
    (tmp_path / "full_attention_heads.tsv").write_text(table)
    if sizes is not None:
        (tmp_path / "config.json").write_text(sizes)
    with pytest.raises(ValueError, match=words) as caught:
        DuoHeads.load_pattern(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_saved_and_read_back(tmp_path) -> None:
    pattern = HeadPattern(((0.25, 1.0), (0.0, 0.333333)), 7, 9)
    save_pattern(pattern, tmp_path / "duo", model_name="tiny")
    assert read_pattern(tmp_path / "duo") == pattern


def test_the_report_says_the_equal_budget() -> None:
    model, policy = (
        tiny_model("llama"),
        make_policy("duoattention", pattern=((1.0, 0.0), (0.2, 0.7)), sink_tokens=4, recent_tokens=16),
    )
    cache = CompressedCache(model, policy)
    generate(model, policy, cache=cache, input_ids=prompt(100), **greedy(3))
    report = cache.report()
    assert report.equivalent_tokens == [60.0]
    assert report.kept_tokens == [62.0], "and the two tokens fed since"
    assert "60 tokens per KV head" in str(report)
    other = CompressedCache(model, make_policy("snapkv", 40))
    generate(model, make_policy("snapkv", 40), cache=other, input_ids=prompt(100), **greedy(3))
    assert other.report().equivalent_tokens == [None]


def test_prompt_hides_passkeys_between_sinks_and_newest() -> None:
    made = retrieval_prompt(WordTokenizer(), prompt_tokens=300, sink_tokens=20, recent_tokens=40, passkeys=3, seed=1)
    assert made == retrieval_prompt(
        WordTokenizer(), prompt_tokens=300, sink_tokens=20, recent_tokens=40, passkeys=3, seed=1
    )
    assert len(made.needles) == 3 and len(made.asked) == len(made.answer_ids)
    assert all(start >= 20 and stop <= len(made.prompt_ids) - 40 for start, stop in made.needles)
    assert {number for number in made.asked if number is not None} == {0, 1, 2}
    # In front of every word of a passkey stands a token that asks for it, and for no other word.
    assert made.asked.count(0) == made.asked.count(1) == made.asked.count(2) == 1
    with pytest.raises(CalibrationError, match="give a longer prompt"):
        retrieval_prompt(WordTokenizer(), prompt_tokens=70, sink_tokens=20, recent_tokens=40)


def test_mass_by_hand() -> None:
    # One KV head of two query heads, four columns of which the last two are the answer; only the first one asks.
    made = RetrievalPrompt((5, 6), (7, 8), (0, None), ((1, 2),))
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [9.0, 9.0]])[None, None]
    queries = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 30.0], [1.0, 1.0]]])[None, None]  # [B, G, R, W, D]
    watcher = NeedleWatcher(made)
    two, counts = torch.tensor([2]), torch.tensor([[4]])
    keep = watcher.keep(Prompt(queries, two, keys, keys, counts, 1.0, 0, 1), two)
    assert bool(keep.all())
    # A flat query sees three columns alike, its own included; the other one sees the needle alone.
    torch.testing.assert_close(watcher.masses[0], torch.tensor([[1 / 3, 1.0]]))
    assert ranked(torch.tensor([[0.1, 0.9], [0.0, 0.2]])) == ((0.333333, 1.0), (0.0, 0.666667))


def test_calibration_is_deterministic_and_fits_the_model() -> None:
    model = tiny_model("gemma3")
    sizes = {"prompt_tokens": 300, "sink_tokens": 20, "recent_tokens": 40, "passkeys": 3}
    pattern = calibrate_duo(model, WordTokenizer(), **sizes)
    assert (pattern.layers, pattern.kv_heads, pattern.sink_tokens, pattern.recent_tokens) == (2, 2, 20, 40)
    assert sorted(value for row in pattern.values for value in row) == [0.0, 0.333333, 0.666667, 1.0]
    assert pattern == calibrate_duo(model, WordTokenizer(), **sizes)
