"""The adapter through the harness's own request objects and registry, on a tiny model."""

import json

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs the extra harness")

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model

import rocketkv.evals.lm_eval_adapter  # noqa: F401  (registers the model)
from support.byte_model import byte_model, byte_tokenizer, save_byte_model

CONTEXT = "the quick brown fox jumps over the lazy dog and runs through the wood. " * 3


def adapter(policy="rocketkv", budget_tokens=32, **options):
    """The registered class, as the harness makes it."""
    return get_model("rocketkv")(
        byte_model(), tokenizer=byte_tokenizer(), policy=policy, budget_tokens=budget_tokens, backend="reference",
        batch_size=1, device="cpu", **options,
    )  # fmt: skip


def request(kind, *arguments):
    return Instance(kind, {}, arguments, 0)


def dense_value(context, continuation):
    tokenizer, model = byte_tokenizer(), byte_model()
    first, second = tokenizer(context)["input_ids"], tokenizer(continuation)["input_ids"]
    with torch.no_grad():
        likely = model(torch.tensor([first + second])).logits[0, len(first) - 1 : -1].log_softmax(-1)
    return float(likely[range(len(second)), second].sum())


def test_it_is_a_model_of_the_harness():
    assert isinstance(adapter(), LM)
    assert adapter(split=0.5).policy.split == 0.5


@pytest.mark.law
def test_log_likelihoods_of_full_kv_are_the_models_and_of_a_policy_are_not():
    choices = (" yes", " no", " maybe so")
    requests = [request("loglikelihood", CONTEXT, choice) for choice in choices]
    dense = [dense_value(CONTEXT.rstrip(), f" {choice}") for choice in choices]  # trailing space moves over
    full, rocket = adapter("full", None), adapter()
    assert [value for value, _ in full.loglikelihood(requests, disable_tqdm=True)] == pytest.approx(dense, abs=1e-3)
    found = [value for value, _ in rocket.loglikelihood(requests, disable_tqdm=True)]
    assert max(abs(a - b) for a, b in zip(found, dense, strict=True)) > 0.01
    # One reading, and as many steps as the longest of the three continuations has tokens, in both layers.
    assert rocket.sparse_steps == 2 * (len(" maybe so") + 1)
    assert rocket.dense_steps == 0 and full.sparse_steps == 0
    assert rocket.scored_tokens == sum(len(choice) + 1 for choice in choices)


def test_requests_come_back_in_their_order():
    requests = [request("loglikelihood", context, choice)
                for choice in (" a", " bb") for context in (CONTEXT, CONTEXT[:150], CONTEXT[:100])]  # fmt: skip
    alone = [adapter().loglikelihood([each], disable_tqdm=True)[0][0] for each in requests]
    together = [value for value, _ in adapter().loglikelihood(requests, disable_tqdm=True)]
    assert together == pytest.approx(alone, abs=1e-3)


def test_rolling_log_likelihood_of_full_kv_is_the_texts():
    lm = adapter("full", None)
    (value,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", CONTEXT)])
    tokenizer, model = byte_tokenizer(), byte_model()
    ids = [lm.prefix_token_id, *tokenizer(CONTEXT)["input_ids"]]
    with torch.no_grad():
        likely = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    assert value == pytest.approx(float(likely[range(len(ids) - 1), ids[1:]].sum()), abs=1e-2)


def test_what_is_too_long_loses_its_beginning():
    (cut,) = adapter(max_length=100).loglikelihood([request("loglikelihood", CONTEXT, "end")], disable_tqdm=True)
    kept = CONTEXT.rstrip()[-97:]  # and the four tokens of " end", the last of which is only predicted
    (same,) = adapter().loglikelihood([request("loglikelihood", kept, " end")], disable_tqdm=True)
    assert cut == same


def test_answers_stop_where_they_are_told_to():
    lm = adapter("full", None)
    ids = byte_tokenizer()(CONTEXT, return_tensors="pt")["input_ids"]
    out = byte_model().generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False,
                                pad_token_id=0)  # fmt: skip
    text = byte_tokenizer().decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    (whole,) = lm.generate_until([request("generate_until", CONTEXT, {"max_gen_toks": 12, "until": []})])
    assert whole == text
    stop = next(letter for letter in text[3:] if letter.isascii())
    (cut,) = lm.generate_until([request("generate_until", CONTEXT, {"max_gen_toks": 12, "until": [stop]})])
    assert cut == text[: text.index(stop)]
    with pytest.raises(ValueError, match="greedy"):
        lm.generate_until([request("generate_until", CONTEXT, {"do_sample": True})])


def test_the_harness_runs_a_task_from_a_file(tmp_path, monkeypatch):
    pytest.importorskip("lm_eval.evaluator", reason="needs all that the harness needs")
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"text": CONTEXT, "choices": [" yes", " no"], "label": number % 2} for number in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(
        f"task: from_file\ndataset_path: json\ndataset_kwargs:\n  data_files: {tmp_path / 'rows.jsonl'}\n"
        "test_split: train\noutput_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_choice: '{{choices}}'\n"
        "doc_to_target: '{{label}}'\nmetric_list:\n  - metric: acc\n"
    )
    folder = save_byte_model(tmp_path / "model")
    found = lm_eval.simple_evaluate(
        model="rocketkv",
        model_args=f"pretrained={folder},policy=rocketkv,budget_tokens=32,split=0.5,backend=reference",
        tasks=["from_file"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found["results"]["from_file"]["acc,none"] == 0.5  # the same text twice, another label each time
    assert found["config"]["policy"] == "rocketkv" and found["config"]["budget_tokens"] == 32
    assert found["config"]["sparse_steps"] > 0 and found["config"]["dense_steps"] == 0
