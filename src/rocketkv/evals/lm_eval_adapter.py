"""lm-evaluation-harness (0.4.13, the extra `harness`) over a compressed cache: any of its tasks, nothing of it patched.

`python -m rocketkv.evals.lm_eval_adapter --model rocketkv --model_args pretrained=smollm2,budget_tokens=256 --tasks T`
takes the harness's own arguments; importing this module registers the model under the name rocketkv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from rocketkv.hf.forced import score_continuations
from rocketkv.hf.models import load_model
from rocketkv.hf.shape import shape_of
from rocketkv.hf.together import decode_rows, end_ids
from rocketkv.policies.registry import make_policy

DEFAULT_CONTEXT_TOKENS = 2048
DEFAULT_NEW_TOKENS = 256


@register_model("rocketkv")
class RocketKVLM(TemplateLM):
    """A model whose answers and log-likelihoods come from decode steps under a policy.

    Args:
        pretrained: as `load_model` takes it, or a model with `tokenizer` given too.
        policy, budget_tokens, policy_options: as `make_policy` takes them.
        max_length: tokens of context and continuation together; the model's own limit if None. What is longer loses
            its beginning.
        max_gen_toks: stop limit where a task gives none.
        batch_size, max_batch_size, device: the harness passes them; prompts are read one at a time, where the model is.

    `sparse_steps` and `dense_steps` count decode steps of all compressed layers so far, `scored_tokens` the tokens
    whose log-likelihood was asked for.
    """

    def __init__(
        self,
        pretrained: Any = "smollm2",
        *,
        policy: str = "rocketkv",
        budget_tokens: int | None = 256,
        tokenizer: Any = None,
        dtype: str = "float32",
        weights: str = "float",
        backend: str = "auto",
        max_length: int | None = None,
        max_gen_toks: int = DEFAULT_NEW_TOKENS,
        batch_size: Any = 1,
        max_batch_size: Any = None,
        device: Any = None,
        **policy_options: Any,
    ) -> None:
        super().__init__()
        self.policy = make_policy(policy, budget_tokens, **policy_options)
        if tokenizer is None:
            self.model, self.tokenizer = load_model(pretrained, dtype=getattr(torch, dtype), weights=weights)
        else:
            self.model, self.tokenizer = pretrained, tokenizer
        self.name, self.backend = str(pretrained) if isinstance(pretrained, str) else "model", backend
        self.max_length = max_length or shape_of(self.model.config).context_tokens or DEFAULT_CONTEXT_TOKENS
        self.max_gen_toks = max_gen_toks
        self.batch_size = 1
        self._device = self.model.device
        self.sparse_steps = self.dense_steps = self.scored_tokens = 0

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises ValueError if neither model nor tokenizer names one."""
        ends = [*end_ids(self.model), self.tokenizer.eos_token_id, self.tokenizer.pad_token_id]
        found = [token for token in ends if token is not None]
        if not found:
            raise ValueError("neither the model nor its tokenizer names an end token: set tokenizer.eos_token")
        return int(found[0])

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the token that begins a text, else the one that ends it."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, by which the harness keeps its requests apart."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the tokenizer's template writes it; an unfinished answer is left open."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; special tokens in front as the tokenizer has them, unless the text begins with them already."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (begin and string.startswith(begin))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes into its results: the policy, and how the numbers were made."""
        return {
            **self.policy.describe(),
            "pretrained": self.name,
            "sparse_steps": self.sparse_steps,
            "dense_steps": self.dense_steps,
        }

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Requests that share a context are answered from one reading of it, each in a row of its own."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, (_, context, continuation) in enumerate(requests):
            whole = [*context, *continuation][-(self.max_length + 1) :]
            kept = whole[: max(1, len(whole) - len(continuation))]
            groups.setdefault(tuple(kept), []).append(place)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for context_ids, places in groups.items():
            continuations = [requests[place][2] for place in places]
            forced = score_continuations(self.model, self.policy, context_ids, continuations, backend=self.backend)
            self._count(forced.sparse_steps, forced.dense_steps)
            self.scored_tokens += sum(map(len, continuations))
            for place, value, greedy in zip(places, forced.log_likelihoods, forced.greedy, strict=True):
                found[place] = value, greedy
                if requests[place][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[place][0], found[place])
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts: windows as the harness cuts them, every token but a window's context a decode step."""
        sums = []
        for (text,) in (request.args for request in requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(None, *utils.make_disjoint_window(window)) for window in windows]
            sums.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, cut at the first stop text. Raises ValueError for a request that wants sampling."""
        return [self._generate(request.args[0], dict(request.args[1])) for request in requests]

    @torch.inference_mode()
    def _generate(self, context: str, wanted: dict[str, Any]) -> str:
        if wanted.get("do_sample") and wanted.get("temperature", 1.0) > 0:
            raise ValueError("answers are greedy: run the task with do_sample=False")
        until = wanted.get("until") or []
        stop = [until] if isinstance(until, str) else list(until)
        limit = int(wanted.get("max_gen_toks", self.max_gen_toks))
        ids = self.tok_encode(context)[-max(1, self.max_length - limit) :]
        cache = CompressedCache(self.model, self.policy, backend=self.backend)
        with attach(self.model):
            prompt = torch.tensor([ids], device=self.model.device)
            logits = self.model(prompt, logits_to_keep=1, use_cache=True, **cache.kwargs).logits[:, -1]
            (said,) = decode_rows(
                self.model,
                cache,
                logits,
                max_new_tokens=limit,
                stop_ids=end_ids(self.model),
                ended=lambda new: any(text in self.tokenizer.decode(new) for text in stop),
            )
        report = cache.report()
        self._count(report.sparse_steps, report.dense_steps)
        answer = _cut(self.tokenizer.decode(said, skip_special_tokens=True), stop)
        self.cache_hook.add_partial("generate_until", (context, wanted), answer)
        return answer

    def _count(self, sparse_steps: int, dense_steps: int) -> None:
        self.sparse_steps += sparse_steps
        self.dense_steps += dense_steps


def _cut(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop text."""
    return text[: min((text.index(end) for end in stop if end and end in text), default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
