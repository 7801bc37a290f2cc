"""What cannot be served is refused early, by name, with the way out."""

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GenerationConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import rocketkv
from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.errors import UnsupportedModelError
from support.models import COMMON, greedy, left_padded, prompt, tiny_config, tiny_model
from support.policies import POLICIES

pytestmark = pytest.mark.law
POLICY = POLICIES["rocketkv"](40)


class Counted:
    """Counts the forwards of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.forwards = 0
        self.hook = model.register_forward_pre_hook(self._count)

    def _count(self, *args: object) -> None:
        self.forwards += 1


@pytest.mark.parametrize("how", ["prompt_lookup_num_tokens", "assistant_model"])
def test_assisted_decoding_is_refused_before_any_forward(how: str) -> None:
    model = tiny_model("llama")
    asked = {how: 3 if how == "prompt_lookup_num_tokens" else tiny_model("llama_mha")}
    counted = Counted(model)
    with pytest.raises(ValueError, match=f"(?s){how}.*assisted decoding"):
        rocketkv.generate(model, POLICY, input_ids=prompt(60), **asked, **greedy(3))
    with attach(model), pytest.raises(ValueError, match=r"assisted decoding .*prompt_lookup_num_tokens"):
        model.generate(prompt(60), **CompressedCache(model, POLICY).kwargs, **asked, **greedy(3))
    counted.hook.remove()
    assert counted.forwards == 0


def test_assisted_decoding_in_a_generation_config_is_refused() -> None:
    model = tiny_model("llama")
    config = GenerationConfig(prompt_lookup_num_tokens=3, max_new_tokens=4, pad_token_id=0)
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens: assisted"):
        rocketkv.generate(model, POLICY, input_ids=prompt(60), generation_config=config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_right_padding_is_refused(attention: str) -> None:
    model = tiny_model("llama", attention=attention)
    ids, mask = left_padded([prompt(60), prompt(40, seed=1)])
    with pytest.raises(ValueError, match="pad on the left"):
        rocketkv.generate(model, POLICY, input_ids=ids.flip(1), attention_mask=mask.flip(1), **greedy(3))
    holes = torch.ones_like(ids)
    holes[0, 30] = 0
    with pytest.raises(ValueError, match="holes"):
        rocketkv.generate(model, POLICY, input_ids=ids, attention_mask=holes, **greedy(3))


def test_cropping_is_refused_and_harms_nothing() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICY)
    out = rocketkv.generate(model, POLICY, cache=cache, input_ids=prompt(60), **greedy(3))
    cache.crop(0)
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.crop(-1)
    assert cache.get_seq_length() == out.sequences.shape[1] - 1


def deepseek() -> torch.nn.Module:
    config = DeepseekV3Config(
        **COMMON, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1,
    )  # fmt: skip
    return DeepseekV3ForCausalLM(config)


def gpt_oss() -> torch.nn.Module:
    config = GptOssConfig(**COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=24)
    return GptOssForCausalLM(config)


UNSUPPORTED = {
    "DeepseekV3": (deepseek, "MLA"),
    "Gemma2": (lambda: Gemma2ForCausalLM(Gemma2Config(**COMMON, head_dim=16)), "softcap"),
    "T5": (lambda: T5ForConditionalGeneration(T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
                                                       vocab_size=50)), "encoder-decoder"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_models_that_cannot_be_compressed_are_refused_by_name(name: str) -> None:
    make, reason = UNSUPPORTED[name]
    model = make().eval()
    before = model.config._attn_implementation
    for call in (
        lambda: CompressedCache(model, POLICY),
        lambda: attach(model).__enter__(),
        lambda: rocketkv.generate(model, POLICY, input_ids=prompt(9) % 50, max_new_tokens=2),
    ):
        with pytest.raises(UnsupportedModelError, match=f"(?s){name}.*{reason}"):
            call()
    assert model.config._attn_implementation == before


def test_attention_sinks_are_refused_by_name() -> None:
    model = gpt_oss().eval()
    with pytest.raises(UnsupportedModelError, match=r"GptOss.*sinks|GptOss.*s_aux"):
        rocketkv.generate(model, POLICY, input_ids=prompt(60), **greedy(2))


def test_a_model_of_sliding_layers_alone_has_nothing_to_compress() -> None:
    model = MistralForCausalLM(tiny_config("mistral", sliding_window=16)).eval()
    with pytest.raises(UnsupportedModelError, match=r"MistralForCausalLM.*no full-attention layer"):
        CompressedCache(model, POLICY)


def test_out_of_range_numbers_are_named() -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="planned_new_tokens=-1"):
        CompressedCache(model, POLICY, planned_new_tokens=-1)
    with pytest.raises(ValueError, match="total_tokens=0"):
        CompressedCache(model, POLICY).begin_prefill(0)


def test_a_batch_of_another_size_is_refused() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICY)
    rocketkv.generate(model, POLICY, cache=cache, input_ids=prompt(60), **greedy(3))
    with attach(model), pytest.raises(ValueError, match="a batch of 3 on a cache of 1"):
        model(prompt(5, rows=3), **cache.kwargs)


def test_after_a_refused_batch_the_right_one_is_read() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, [POLICY, POLICY])
    with attach(model):
        for _ in range(2):
            with pytest.raises(ValueError, match="2 policies for a batch of 3"):
                model(prompt(60, rows=3), **cache.kwargs)
        model(prompt(60, rows=2), **cache.kwargs)
    assert cache.states[0].row_tokens.tolist() == [60, 60]


def test_a_cache_of_another_policy_is_refused() -> None:
    model = tiny_model("llama")
    cache = CompressedCache(model, POLICY)
    with pytest.raises(ValueError, match="another policy"):
        rocketkv.generate(model, POLICIES["rocketkv"](48), cache=cache, input_ids=prompt(60), **greedy(3))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_without_a_single_token_is_refused(attention: str) -> None:
    model = tiny_model("llama", attention=attention)
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1] = 0
    with pytest.raises(ValueError, match="row 1 of the batch holds no token"):
        rocketkv.generate(model, POLICY, input_ids=prompt(60, rows=2), attention_mask=mask, **greedy(3))
