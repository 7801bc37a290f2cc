"""The runner's laws: sharing changes nothing, and a sweep that stops goes on where it stopped."""

import pytest
import torch
from filelock import FileLock

from rocketkv.evals.answering import Settings, plan_batches
from rocketkv.evals.contenders import make_contenders
from rocketkv.evals.runner import RECORDS_NAME
from rocketkv.evals.script import make_script
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.generate import generate
from rocketkv.hf.memory import PrefillMemoryError
from rocketkv.hf.prompting import PromptError
from rocketkv.hf.snapshot import fork
from rocketkv.records import RecordError, append_record, read_records
from support.byte_model import byte_model, byte_tokenizer
from support.eval_tasks import NEW_TOKENS, Letters, Silent, Talk, comparable, run_sweep

SPECS = ("full", "rocketkv", "rocketkv-mt", "snapkv", "quest", "sparq", "adakv+hsa")


def alone(policy, turns, *, mode):
    """What one policy says in each turn, by transformers' own generate, one call a turn.

    `turns`: what is read before each answer, and what stands in the next turn for the answer (None: its own).
    """
    model = byte_model()
    said, ids = [], []
    cache = CompressedCache(model, policy, backend="reference")
    for new, golden in turns:
        ids = ids + list(new)
        prompt = torch.tensor([ids])
        cache_of_turn = cache
        if mode == "golden":
            cache_of_turn = fork(cache)
        out = generate(model, policy, cache=cache_of_turn, input_ids=prompt, attention_mask=torch.ones_like(prompt),
                       max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)  # fmt: skip
        said.append(out[0, len(ids) :].tolist())
        if mode == "golden":
            # The turn itself, read by the cache that goes on.
            with attach(model), torch.inference_mode():
                cache.begin_prefill(len(ids) - cache.get_seq_length())
                model(prompt[:, cache.get_seq_length() :], **cache.kwargs)
            ids = ids + list(golden)
        else:
            ids = ids + said[-1]
    return said


@pytest.mark.law
@pytest.mark.parametrize("limit", [None, 400_000, 150_000])
@pytest.mark.parametrize("chat", [False, True])
def test_the_question_inside_equals_every_policy_from_scratch(tmp_path, chat, limit):
    task, tokenizer = Letters(chat=chat), byte_tokenizer()
    records = run_sweep(tmp_path, task, specs=SPECS, max_cache_bytes=limit)
    assert len(records) == 2 * (1 + 2 * (len(SPECS) - 1))
    contenders = {(c.spec, c.budget_tokens): c.policy for c in make_contenders(SPECS, (32, 64))}
    for item in task.examples(tokenizer, max_tokens=300, n=2):
        script = make_script(tokenizer, item, protocol="inside", mode=None)
        for record in records:
            if record["example"] == item.id:
                policy = contenders[record["policy"], record["budget_tokens"]]
                (expected,) = alone(policy, [(script.shared_ids, ())], mode="own")
                assert record["prediction"] == tokenizer.decode(expected, skip_special_tokens=True)
                assert record["new_tokens"] == NEW_TOKENS
                assert record["prefill_shared"] == "prompt"
                assert record["prompt_tokens"] == len(script.shared_ids)


@pytest.mark.law
@pytest.mark.parametrize("limit", [None, 400_000])
def test_full_kv_equals_plain_generate(tmp_path, limit):
    task, tokenizer, model = Letters(), byte_tokenizer(), byte_model()
    records = run_sweep(tmp_path, task, specs=("full", "snapkv"), max_cache_bytes=limit)
    texts = {record["example"]: record["prediction"] for record in records if record["policy"] == "full"}
    for item in task.examples(tokenizer, max_tokens=300, n=2):
        ids = tokenizer(item.text, return_tensors="pt")["input_ids"]
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                             do_sample=False, pad_token_id=0)  # fmt: skip
        assert texts[item.id] == tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.law
def test_the_question_after_equals_a_second_turn_of_each_policy(tmp_path):
    task, tokenizer = Letters(), byte_tokenizer()
    records = run_sweep(tmp_path, task, specs=SPECS, protocol="after", n=1)
    contenders = {(c.spec, c.budget_tokens): c.policy for c in make_contenders(SPECS, (32, 64))}
    (item,) = task.examples(tokenizer, max_tokens=300, n=1)
    script = make_script(tokenizer, item, protocol="after", mode=None)
    assert tokenizer.decode(script.shared_ids) == item.context
    for record in records:
        policy = contenders[record["policy"], record["budget_tokens"]]
        expected = after_context(policy, script)
        assert record["prediction"] == tokenizer.decode(expected), record["policy"]
        assert record["prefill_shared"] == "context"
        assert record["shared_tokens"] == len(script.shared_ids) < record["prompt_tokens"]


def after_context(policy, script):
    """The answer of a policy that reads and compresses the context, then the question."""
    model, ids = byte_model(), [*script.shared_ids, *script.turns[0].ids]
    cache = CompressedCache(model, policy, backend="reference")
    with attach(model), torch.inference_mode():
        model(torch.tensor([script.shared_ids]), **cache.kwargs)
    prompt = torch.tensor([ids])
    out = generate(model, policy, cache=cache, input_ids=prompt, attention_mask=torch.ones_like(prompt),
                   max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.mark.law
@pytest.mark.parametrize("limit", [None, 800_000])
@pytest.mark.parametrize("mode", ["golden", "own"])
def test_conversations_equal_every_policy_alone(tmp_path, mode, limit):
    task, tokenizer = Talk(), byte_tokenizer()
    records = run_sweep(tmp_path, task, specs=SPECS, turns=mode, n=1, max_cache_bytes=limit)
    contenders = {(c.spec, c.budget_tokens): c.policy for c in make_contenders(SPECS, (32, 64))}
    (item,) = task.examples(tokenizer, max_tokens=300, n=1)
    script = make_script(tokenizer, item, protocol="inside", mode=mode)
    parts = [(script.shared_ids, script.turns[0].golden_ids)]
    parts += [(turn.ids, turn.golden_ids) for turn in script.turns[1:]]
    for key, policy in contenders.items():
        mine = [record for record in records if (record["policy"], record["budget_tokens"]) == key]
        assert [record["turn"] for record in mine] == [0, 1, 2]
        assert [record["turns"] for record in mine] == [mode] * 3
        expected = [tokenizer.decode(ids, skip_special_tokens=True) for ids in alone(policy, parts, mode=mode)]
        assert [record["prediction"] for record in mine] == expected, key


def test_golden_turns_of_full_kv_equal_one_reading_of_the_whole_text(tmp_path):
    task, tokenizer, model = Talk(), byte_tokenizer(), byte_model()
    records = run_sweep(tmp_path, task, specs=("full",), n=1)
    (item,) = task.examples(tokenizer, max_tokens=300, n=1)
    text = item.context
    for turn, record in zip(item.turns, records, strict=True):
        text += ("" if turn is item.turns[0] else "\n\n") + turn.question.lstrip(
            "\n" if turn is not item.turns[0] else ""
        )
        text += turn.answer_prefix
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert record["prompt_tokens"] == ids.shape[1]
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                             do_sample=False, pad_token_id=0)  # fmt: skip
        assert record["prediction"] == tokenizer.decode(out[0, ids.shape[1] :])
        text += f" {turn.references[0]}"


def test_a_sweep_that_stopped_ends_with_the_same_records(tmp_path):
    whole = run_sweep(tmp_path / "whole", Letters())
    for lines in (0, 1, 3, 5, 9):
        folder = tmp_path / str(lines)
        run_sweep(folder, Letters())
        path = folder / RECORDS_NAME
        kept = path.read_bytes().splitlines(keepends=True)[:lines]
        path.write_bytes(b"".join(kept) + b'{"schema": "torn')
        watcher = Silent()
        assert comparable(run_sweep(folder, Letters(), watcher=watcher)) == comparable(whole)
        assert watcher.scored_records == len(whole) - lines
        assert len(read_records(path)) == len(whole)


def test_a_finished_sweep_reads_nothing_again(tmp_path):
    first = run_sweep(tmp_path, Talk())
    watcher = Silent()
    assert run_sweep(tmp_path, Talk(), watcher=watcher) == first
    assert watcher.begun == (2, 2) and watcher.readings == 0
    # Another budget, seed or protocol is another row.
    more = run_sweep(tmp_path, Talk(), budgets=(32, 64, 128), watcher=watcher)
    assert watcher.scored_records == 2 * 3 * 2
    assert len(more) == len(first) + 12


def test_records_of_another_prompt_are_refused(tmp_path):
    run_sweep(tmp_path, Letters())
    path = tmp_path / RECORDS_NAME
    records = read_records(path)
    path.unlink()
    for record in records:
        append_record(path, record | {"prompt_sha256": "0"})
    with pytest.raises(RecordError, match="another prompt"):
        run_sweep(tmp_path, Letters())


def test_a_limit_makes_batches_and_spills(tmp_path):
    model, tokenizer = byte_model(), byte_tokenizer()
    (item,) = Letters().examples(tokenizer, max_tokens=1000, n=1)
    script = make_script(tokenizer, item, protocol="inside", mode=None)
    policies = [contender.policy for contender in make_contenders(SPECS, (32, 64, 128))]
    one, spilled = plan_batches(model, script, policies, Settings(max_cache_bytes=1 << 40))
    assert (len(one), spilled) == (1, False)
    some, spilled = plan_batches(model, script, policies, Settings(max_cache_bytes=1_500_000))
    assert len(some) > 1 and not spilled
    assert [row for batch in some for row in batch] == list(range(len(policies)))
    _, spilled = plan_batches(model, script, policies, Settings(max_cache_bytes=500_000))
    assert spilled
    with pytest.raises(PrefillMemoryError, match="limit is 1,000"):
        plan_batches(model, script, policies, Settings(max_cache_bytes=1000))


def test_a_prompt_that_does_not_fit_the_model_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(PromptError, match="context holds 4,096"):
        run_sweep(tmp_path, Letters(), max_tokens=6000)
    assert not (tmp_path / RECORDS_NAME).exists()


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(RecordError, match="another sweep"):
        run_sweep(tmp_path, Letters())
