"""Who reads and decodes without `torch.no_grad()` gets the numbers of who does not forget it."""

import pytest
import torch

from rocketkv.hf.attach import attach
from rocketkv.hf.cache import CompressedCache
from support.models import prompt, tiny_model
from support.policies import COMPRESSING


@pytest.mark.parametrize("name", COMPRESSING)
def test_steps_that_record_gradients_give_the_same_numbers(name: str) -> None:
    model, ids = tiny_model("llama"), prompt(80)
    found = []
    for forgotten in (True, False):
        cache = CompressedCache(model, COMPRESSING[name](32))
        with attach(model), torch.set_grad_enabled(forgotten):
            model(ids, **cache.kwargs)
            found.append([model(ids[:, at : at + 1], **cache.kwargs).logits.detach() for at in range(3)])
    assert all(map(torch.equal, *found))
