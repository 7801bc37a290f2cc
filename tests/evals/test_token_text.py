"""Texts of tokens, and where a wanted text stands among them, by hand."""

import pytest

from rocketkv.evals.token_text import places, token_pieces, wanted


class Bytes:
    """One token a byte; what is no text yet is written as decoders write it. 0 is a special token."""

    def decode(self, ids, **options) -> str:
        parts = bytes(ids).split(b"\0")
        return "<s>".join(part.decode("utf-8", errors="replace") for part in parts)


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    ids = list("aé€\0b".encode())
    pieces = token_pieces(Bytes(), ids)
    assert pieces == ["a", "", "é", "", "", "€", "<s>", "b"]
    assert token_pieces(Bytes(), []) == []


def test_bytes_that_never_become_a_character_lose_nothing() -> None:
    ids = [*b"ab", 0xFF, *b"cd", 0xE2]
    assert "".join(token_pieces(Bytes(), ids)) == Bytes().decode(ids)


def test_pieces_of_a_real_tokenizer_join_to_its_text(tokenizer_of_bytes) -> None:
    ids = tokenizer_of_bytes("naïve café — 3 €")["input_ids"]
    assert "".join(token_pieces(tokenizer_of_bytes, ids)) == "naïve café — 3 €"


@pytest.fixture
def tokenizer_of_bytes():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from support.tiny_gguf import byte_tokens

    inner = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(byte_tokens())}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        ("1679215", ["is 1679215.", "1,679,215", "x1679215"], ["16792150", "01679215", "167 9215"]),
        ("New  York", ["in new york", "New\nYork's"], ["Newer York", "New Yorker"]),
        ("a+b", ["a+b"], ["aab"]),
        ("東京", ["私は東京にいる"], ["京都"]),
    ],
)
def test_what_a_wanted_text_matches(text, found, not_found) -> None:
    pattern = wanted(text)
    assert all(pattern.search(line) for line in found)
    assert not any(pattern.search(line) for line in not_found)


def test_an_empty_text_cannot_be_wanted() -> None:
    with pytest.raises(ValueError, match="empty: give words"):
        wanted(" \n")


def test_places_by_hand() -> None:
    pieces = ["It", " is", " 4", "2", ".", "", "é", " and 4", "2,", " 421"]
    assert places(pieces, wanted("42")) == [(2, 4), (7, 9)]
    assert places(pieces, wanted("é")) == [(5, 7)]  # with the token that holds the first byte of it
    assert places(pieces, wanted("43")) == []
