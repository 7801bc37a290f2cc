"""The needle task: where the needle lies, what the haystack is made of, what counts as found."""

import pytest

from rocketkv.evals.registry import make_task
from rocketkv.evals.tasks.haystack import NOISE, load_haystack, split_sentences
from rocketkv.evals.tasks.niah import WORDINGS, planted
from support.byte_model import byte_tokenizer


@pytest.mark.parametrize("wording", WORDINGS)
def test_the_needle_lies_at_its_depth(wording):
    task = make_task("niah", depths=5, wording=wording)
    made = list(task.examples(byte_tokenizer(), max_tokens=6000, n=10))
    assert [example.meta["depth"] for example in made] == [0, 0.25, 0.5, 0.75, 1] * 2
    for example in made:
        text = example.context.split("\n\n", 1)[1]
        needle = example.meta["needles"][0]
        assert text.count(needle) == 1
        place = text.index(needle) / (len(text) - len(needle))
        assert place == pytest.approx(example.meta["depth"], abs=0.05)
        assert len(example.references[0]) == 7
        assert example.references[0] in needle and example.references[0] not in example.question + example.answer_prefix


def test_an_unknown_wording_is_refused():
    with pytest.raises(ValueError, match="choose magic or passkey"):
        make_task("niah", wording="password")


def test_one_depth_is_the_middle():
    (example,) = make_task("niah", depths=1).examples(byte_tokenizer(), max_tokens=2000)
    assert example.meta["depth"] == 0.5


def test_planted_by_hand():
    assert planted(["a", "b", "c", "d"], "X", 0) == "X a b c d"
    assert planted(["a", "b", "c", "d"], "X", 0.5) == "a b X c d"
    assert planted(["a", "b", "c", "d"], "X", 1) == "a b c d X"
    assert planted(["long sentence here.", "b"], "X", 0.5) in ("long sentence here. X b", "X long sentence here. b")


def test_commas_between_digits_do_not_matter():
    task = make_task("niah")
    (example,) = task.examples(byte_tokenizer(), max_tokens=2000, n=1)
    number = example.references[0]
    assert task.score(f" {number[0]},{number[1:4]},{number[4:]}.", example) == 1
    assert task.score(number[:6], example) == 0


def test_a_haystack_from_a_file_and_from_a_folder(tmp_path):
    (tmp_path / "b.txt").write_text("Second  file.\nMore of it.")
    (tmp_path / "a.md").write_text("\ufeffFirst file!", encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe")
    assert load_haystack(str(tmp_path)).text == "First file! Second file. More of it."
    assert load_haystack(str(tmp_path / "b.txt")).text == "Second file. More of it."
    (example,) = make_task("niah", haystack=str(tmp_path)).examples(byte_tokenizer(), max_tokens=2000, n=1)
    assert example.meta["haystack"] == str(tmp_path)
    assert "Second file." in example.context
    assert split_sentences('He said "No." Then? Yes.') == ['He said "No.', "Then?", "Yes."]


def test_haystacks_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_haystack(str(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match="holds no text"):
        load_haystack(str(tmp_path))
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_haystack(str(tmp_path / "bad.txt"))


def test_noise_is_nothing_but_noise():
    (example,) = make_task("niah", haystack="noise").examples(byte_tokenizer(), max_tokens=1500, n=1)
    text = example.context.split("\n\n", 1)[1].replace(example.meta["needles"][0], "")
    assert set(split_sentences(text.replace("  ", " ").strip())) == set(split_sentences(NOISE))
