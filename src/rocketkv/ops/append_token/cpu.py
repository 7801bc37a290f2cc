"""One new token per segment into the flat store, on a CPU."""

from __future__ import annotations

from rocketkv.ops.kernel.cpu import alike, bits, kernel, table
from rocketkv.types import Float, RaggedKV, Tensor


def append_token(keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], kv: RaggedKV) -> None:
    """Write one token per segment behind its last one, in place; there must be room.

    Raises:
        BackendError: for tensors that are not on the CPU, of another dtype than float32, bfloat16 and float16, or of
            another than the store's.
    """
    name = "append_token"
    alike(name, keys, kv.keys)
    alike(name, values, kv.values)
    _write(bits(name, keys), bits(name, values), bits(name, kv.keys), bits(name, kv.values), table(kv.starts),
           table(kv.lengths))  # fmt: skip
    kv.lengths = kv.lengths + 1


@kernel()
def _write(new_keys, new_values, keys, values, starts, lengths):  # type: ignore[no-untyped-def]
    for b in range(starts.shape[0]):
        for g in range(starts.shape[1]):
            slot = starts[b, g] + lengths[b, g]
            keys[slot] = new_keys[b, g]
            values[slot] = new_values[b, g]
