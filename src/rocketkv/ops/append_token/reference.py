"""One new token per segment into the flat store."""

from __future__ import annotations

from rocketkv.types import Float, RaggedKV, Tensor


def append_token(keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], kv: RaggedKV) -> None:
    """Write one token per segment behind its last one, in place; there must be room.

    `kv.lengths` becomes a new tensor.
    """
    slot = kv.starts + kv.lengths
    kv.keys[slot] = keys
    kv.values[slot] = values
    kv.lengths = kv.lengths + 1
