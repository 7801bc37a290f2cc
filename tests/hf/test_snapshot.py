"""A prompt read once for policies that do not fit together: what starts from it is what a reading of its own gives."""

import pytest
import torch

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.snapshot import PromptSnapshot, fork
from rocketkv.hf.together import answer_together, decode_rows
from support.models import prompt, tiny_model
from support.policies import POLICIES

ARCHITECTURES = ["llama", "qwen2", "gemma3"]
NAMES = ["full", "rocketkv", "rocketkv_mt", "snapkv", "quest", "sparq_mean", "loki", "duoattention", "adakv+hsa"]
NEW_TOKENS = 8


def names_for(architecture):
    """The policies whose heads or bases fit the model."""
    return NAMES if architecture == "llama" else [name for name in NAMES if name not in ("loki", "duoattention")]


@pytest.mark.law
@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_from_a_snapshot_equal_rows_of_one_reading(architecture, spilled, tmp_path):
    model, ids = tiny_model(architecture), prompt(150)
    policies = [POLICIES[name](t) for name in names_for(architecture) for t in (32, 64)]
    snapshot = PromptSnapshot(model, policies, ids, spill=tmp_path if spilled else None)
    for begin in range(0, len(policies), 4):
        batch = policies[begin : begin + 4]
        expected = answer_together(model, batch, ids, max_new_tokens=NEW_TOKENS)
        cache = snapshot.cache_for(batch)
        with attach(model):
            found = decode_rows(model, cache, snapshot.logits, max_new_tokens=NEW_TOKENS, stop_ids=())
        assert found == expected.new_tokens
        for ours, theirs in zip(cache.states, expected.cache.states, strict=True):
            assert ours.kept_per_row() == theirs.kept_per_row()
            assert all(map(torch.equal, ours.columns_held() if ours.whole else [ours.kv.keys[:50]],
                           theirs.columns_held() if theirs.whole else [theirs.kv.keys[:50]]))  # fmt: skip
    assert bool(list(tmp_path.iterdir())) == spilled


@pytest.mark.parametrize("name", ["quest", "duoattention", "streamingllm"])
def test_policies_that_observe_no_queries_start_from_a_snapshot(name, llama):
    policies = [POLICIES[name](32)]
    snapshot = PromptSnapshot(llama, policies, prompt(100))
    cache = snapshot.cache_for(policies)
    with attach(llama):
        found = decode_rows(llama, cache, snapshot.logits, max_new_tokens=NEW_TOKENS, stop_ids=())
    assert found == answer_together(llama, policies, prompt(100), max_new_tokens=NEW_TOKENS).new_tokens


def test_a_spilled_snapshot_holds_no_keys(llama, tmp_path):
    snapshot = PromptSnapshot(llama, [POLICIES["rocketkv"](32)], prompt(100), spill=tmp_path)
    assert all(not layer.tensors for layer in snapshot._compressed.values())


def test_a_fork_leaves_the_original_as_it_was(llama):
    policies = [POLICIES[name](32) for name in ("rocketkv", "quest", "loki")]
    cache = CompressedCache(llama, policies, share_prompt=True)
    with attach(llama), torch.inference_mode():
        logits = llama(prompt(90), logits_to_keep=1, **cache.kwargs).logits[:, -1]
        before = [tensor.clone() for state in cache.states for tensor in state.tensors()]
        first = decode_rows(llama, fork(cache), logits, max_new_tokens=70, stop_ids=())
        after = [tensor for state in cache.states for tensor in state.tensors()]
        # Room to grow is memory that nobody wrote: it may be NaN.
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
        assert decode_rows(llama, cache, logits, max_new_tokens=70, stop_ids=()) == first


def test_a_row_ends_where_it_is_told_to(llama):
    cache = CompressedCache(llama, [POLICIES["rocketkv"](t) for t in (16, 32, 64)], share_prompt=True)
    with attach(llama), torch.inference_mode():
        logits = llama(prompt(90), logits_to_keep=1, **cache.kwargs).logits[:, -1]
        answers = decode_rows(llama, cache, logits, max_new_tokens=9, stop_ids=(), ended=lambda ids: len(ids) == 4)
    assert [len(answer) for answer in answers] == [4, 4, 4]


def test_a_snapshot_is_of_one_prompt(llama):
    with pytest.raises(ValueError, match="batch of 2"):
        PromptSnapshot(llama, [POLICIES["full"](16)], prompt(20, rows=2))
