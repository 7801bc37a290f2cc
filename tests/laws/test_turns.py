"""Several turns on one cache, prompts in chunks, prompts at every edge, answers that outgrow the budget."""

import pytest
import torch

import rocketkv
from rocketkv.cache.store import headroom
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.compat import CHUNKS_LATER_TURNS
from rocketkv.policies.base import Policy
from rocketkv.policies.hsa import HybridTopK
from support.bounds import assert_bounds_are_true
from support.models import DTYPES, greedy, left_padded, prompt, tiny_model
from support.policies import EVERYTHING_READ, PAIRS, POLICIES, SINGLE
from support.trace import Trace, next_inputs

pytestmark = pytest.mark.law


class FedColumns:
    """Counts the columns and keeps the positions of every forward of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.columns: list[int] = []
        self.positions: list[torch.Tensor] = []
        self.hook = model.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        fed = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        self.columns.append(fed.shape[1])
        if kwargs.get("position_ids") is not None:
            self.positions.append(kwargs["position_ids"])

    def __enter__(self) -> "FedColumns":
        return self

    def __exit__(self, *error: object) -> None:
        self.hook.remove()


@pytest.mark.parametrize("name", POLICIES)
def test_three_turns_feed_only_what_is_new(name: str) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](40)
    cache, said = CompressedCache(model, policy), prompt(90)
    seen = 0
    for turn, words in enumerate((30, 1, 60)):
        heard = torch.ones_like(said)  # an answer may hold the padding token, which generate would mask
        with FedColumns(model) as fed:
            ours = rocketkv.generate(model, policy, cache=cache, input_ids=said, attention_mask=heard, **greedy(6))
        assert fed.columns == [said.shape[1] - seen, 1, 1, 1, 1, 1]
        positions = torch.cat([p[0] for p in fed.positions])
        assert positions.tolist() == list(range(seen, said.shape[1] + 5))
        seen = said.shape[1] + 5  # the last token was not fed
        assert cache.get_seq_length() == seen
        assert cache.report().tokens_seen == [seen]
        said = torch.cat([ours.sequences, prompt(words, seed=10 + turn)], 1)
    assert_bounds_are_true(cache)


def test_a_turn_may_be_given_as_new_tokens_under_a_full_mask() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    answers = []
    for whole in (True, False):
        cache = CompressedCache(model, policy)
        first = rocketkv.generate(model, policy, cache=cache, input_ids=prompt(90), **greedy(4)).sequences
        said = torch.cat([first, prompt(20, seed=3)], 1)
        ids = said if whole else said[:, cache.get_seq_length() :]
        out = rocketkv.generate(
            model, policy, cache=cache, input_ids=ids, attention_mask=torch.ones_like(said), **greedy(6)
        )
        answers.append(out.sequences[0, -6:])
    assert torch.equal(*answers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EVERYTHING_READ)
def test_turns_that_read_everything_are_the_plain_model(name: str, dtype: str) -> None:
    # Rows of different lengths on both turns, padded on the left of each turn: holes in the middle of the
    # mask.
    model, policy = tiny_model("llama", DTYPES[dtype]), EVERYTHING_READ[name](24)
    cache = CompressedCache(model, policy)
    plain = CompressedCache(model, rocketkv.FullKV())
    turns = [
        left_padded([prompt(60), prompt(31, seed=1)]),
        left_padded([prompt(5, seed=2), prompt(33, seed=3)]),
    ]
    masks = {cache: None, plain: None}
    with attach(model), torch.no_grad():
        for ids, mask in turns:
            for feed, feed_mask in ((ids, mask), *((prompt(1, seed=n, rows=2), None) for n in range(4))):
                logits = []
                for one in (cache, plain):
                    masks[one], inputs = next_inputs(masks[one], feed, feed_mask)
                    logits.append(model(**inputs, **one.kwargs).logits[:, -1])
                slack = 32 * torch.finfo(model.dtype).eps * float(logits[1].abs().max())
                torch.testing.assert_close(logits[0], logits[1], atol=slack, rtol=0)


def test_a_row_that_is_all_padding_on_a_later_turn_keeps_its_tokens() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    cache, mask = CompressedCache(model, policy), None
    answer = prompt(20, seed=5, rows=2)
    with attach(model), torch.no_grad():
        feeds = [
            left_padded([prompt(90), prompt(80, seed=1)]),
            *((answer[:, i : i + 1], None) for i in range(20)),
        ]
        for ids, fresh in feeds:
            mask, inputs = next_inputs(mask, ids, fresh)
            model(**inputs, **cache.kwargs)
        held = cache.states[0].kv.lengths[1].clone()
        ids = prompt(30, seed=2, rows=2)
        fresh = torch.ones_like(ids)
        fresh[1] = 0
        mask, inputs = next_inputs(mask, ids, fresh)
        model(**inputs, **cache.kwargs)
        assert cache.report().tokens_seen == [140, 100]
        assert bool((cache.states[0].kv.lengths[1] == held).all()), "a turn without a word cost the row its tokens"
        mask, inputs = next_inputs(mask, answer[:, :1], None)
        assert bool(model(**inputs, **cache.kwargs).logits.isfinite().all())


@pytest.mark.parametrize("tokens", [1, 2, 3, 31, 32, 33, 39, 40, 41, 42, 80, 81, 300])
@pytest.mark.parametrize("name", ["rocketkv", "small_window", "split_1", "evict_only"])
def test_prompts_of_every_length(name: str, tokens: int) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](40)
    cache = CompressedCache(model, policy)
    out = rocketkv.generate(model, policy, cache=cache, input_ids=prompt(tokens), **greedy(4))
    plain = model.generate(prompt(tokens), **greedy(1))
    assert torch.equal(out.logits[0], plain.logits[0]), "the first token comes from the dense pass"
    report = cache.report()
    plan = policy.plan(tokens, head_dim=12)
    assert report.kept_tokens == [plan.kept_tokens + 3]
    assert report.tokens_seen == [tokens + 3]
    selects = name != "evict_only" and tokens + 3 > 40
    assert (report.sparse_steps > 0) == selects
    assert report.sparse_steps + report.dense_steps == 3 * 2
    assert report.evicted_tokens == (tokens - plan.kept_tokens) * 2 * 2


def test_counters_prove_that_both_stages_ran() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    cache = CompressedCache(model, policy)
    rocketkv.generate(model, policy, cache=cache, input_ids=prompt(300), **greedy(9))
    report = cache.report()
    assert report.evicted_tokens == 2 * 2 * (300 - policy.plan(300, head_dim=12).kept_tokens)
    assert (report.sparse_steps, report.dense_steps) == (8 * 2, 0)
    # One step costs t pairs per head, up to the rounding of pages.
    pair = 2 * 12 * 4
    assert report.step_bytes <= 40 * pair * 2 * 2 * 1.1
    assert report.step_bytes > 20 * pair * 2 * 2


@pytest.mark.parametrize("name", [*SINGLE, "adakv+hsa", "snapkv+quest"])
def test_an_answer_that_outgrows_the_budget(name: str) -> None:
    # Dense until 24 tokens are held, sparse from there, pages laid out again past 50 and 102; stores grow on
    # the way.
    model, policy = tiny_model("llama"), POLICIES[name](24)
    cache = CompressedCache(model, policy)
    out = rocketkv.generate(model, policy, cache=cache, input_ids=prompt(10), **greedy(120))
    plain = model.generate(prompt(10), **greedy(15))
    for step in range(15):  # the 15th answer token is chosen with 24 tokens held
        assert torch.equal(plain.logits[step], out.logits[step])
    report = cache.report()
    assert report.evicted_tokens == 0
    assert report.kept_tokens == [129]
    if policy.slots[1].reads_all:
        return
    selecting = 2 - policy.skip_layers
    assert report.sparse_steps == (119 - 14) * selecting
    if policy.slots[1].layout(24, 25) is None:  # reads keys, not bounds
        return
    assert assert_bounds_are_true(cache) > 0
    page, until = policy.slots[1].layout(24, 25)
    while until < 129:
        page, until = policy.slots[1].layout(24, until + 1)
    assert int(cache.states[-1].ragged.groups[0].bounds.page_tokens[0]) == page
    assert page == 3 or not isinstance(policy.slots[1], HybridTopK)


def test_headroom_is_a_sixteenth_and_at_least_64() -> None:
    assert headroom(torch.tensor([[0, 100, 1024, 16000]])).tolist() == [[64, 164, 1088, 17000]]


def chunked(model: torch.nn.Module, policy: Policy, ids: torch.Tensor, mask: torch.Tensor | None, chunk: int) -> Trace:
    """A trace whose first prompt came in announced chunks."""
    trace = Trace(model, policy)
    trace.cache.begin_prefill(ids.shape[1])
    for start in range(0, ids.shape[1], chunk):
        part = slice(start, start + chunk)
        trace.logits = trace.prompt(ids[:, part], None if mask is None else mask[:, part])
    return trace


@pytest.mark.parametrize(
    ("name", "chunk"),
    [*((name, chunk) for name in SINGLE for chunk in (7, 32, 100, 129)), *((name, 32) for name in PAIRS)],
)
def test_a_prompt_in_announced_chunks_is_the_prompt_at_once(name: str, chunk: int) -> None:
    model, policy = tiny_model("llama"), POLICIES[name](40)
    ids, mask = left_padded([prompt(130), prompt(61, seed=1)])
    parts, whole = chunked(model, policy, ids, mask, chunk), Trace(model, policy)
    torch.testing.assert_close(parts.logits, whole.prompt(ids, mask), atol=1e-4, rtol=1e-4)
    assert parts.kept == whole.kept
    for seed in range(3):
        token = prompt(1, seed=seed, rows=2)
        torch.testing.assert_close(parts.step(token), whole.step(token), atol=1e-4, rtol=1e-4)
    assert parts.reads == whole.reads


@pytest.mark.parametrize("chunk", [10, 64])
def test_a_later_turn_in_announced_chunks(chunk: int) -> None:
    model, policy = tiny_model("llama"), POLICIES["small_window"](40)
    first, second = (
        left_padded([prompt(90), prompt(61, seed=1)]),
        left_padded([prompt(45, seed=2), prompt(17, seed=3)]),
    )
    traces = [Trace(model, policy), Trace(model, policy)]
    logits = []
    for trace, size in zip(traces, (chunk, 1000), strict=True):
        trace.prompt(*first)
        trace.step(prompt(1, seed=4, rows=2))
        trace.cache.begin_prefill(45)
        for start in range(0, 45, size):
            last = trace.prompt(second[0][:, start : start + size], second[1][:, start : start + size])
        logits.append([last, trace.step(prompt(1, seed=5, rows=2)), trace.step(prompt(1, seed=6, rows=2))])
    assert traces[0].kept == traces[1].kept
    assert traces[0].reads == traces[1].reads
    for one, two in zip(*logits, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, "llama") for name in POLICIES),
        *((name, "gemma3") for name in ("full", "rocketkv", "rocketkv_mt", "adakv+hsa")),
    ],
)
def test_generate_announces_its_chunks(name: str, architecture: str) -> None:
    model, policy, ids = tiny_model(architecture), POLICIES[name](40), prompt(150)
    outs, caches = [], []
    for options in ({}, {"prefill_chunk_size": 31}):
        caches.append(CompressedCache(model, policy))
        outs.append(rocketkv.generate(model, policy, cache=caches[-1], input_ids=ids, **greedy(6, **options)))
    assert torch.equal(outs[0].sequences, outs[1].sequences)
    for one, two in zip(outs[0].logits, outs[1].logits, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    assert caches[0].report().kept_tokens == caches[1].report().kept_tokens
    assert caches[1].states[0].counters.prompts == 1


def test_a_second_turn_in_chunks_through_generate() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    answers = []
    for options in ({}, {"prefill_chunk_size": 16}):
        cache = CompressedCache(model, policy)
        first = rocketkv.generate(model, policy, cache=cache, input_ids=prompt(90), **greedy(4, **options)).sequences
        said = torch.cat([first, prompt(50, seed=3)], 1)
        if options and not CHUNKS_LATER_TURNS:
            with pytest.raises(ValueError, match=r"needs transformers 5\.23"):
                rocketkv.generate(model, policy, cache=cache, input_ids=said, **greedy(6, **options))
            return
        answers.append(rocketkv.generate(model, policy, cache=cache, input_ids=said, **greedy(6, **options)).sequences)
    assert torch.equal(*answers)


def test_reset_forgets_everything() -> None:
    model, policy = tiny_model("llama"), POLICIES["rocketkv"](40)
    cache, outs = CompressedCache(model, policy), []
    for _ in range(2):
        outs.append(rocketkv.generate(model, policy, cache=cache, input_ids=prompt(90), **greedy(4)).sequences)
        assert cache.report().tokens_seen == [93]
        cache.reset()
        assert cache.get_seq_length() == 0
        assert cache.report().cache_bytes == 0
    assert torch.equal(*outs)
