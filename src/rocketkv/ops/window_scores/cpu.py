"""The observation window's votes on a CPU: PyTorch's matrix product, then softmax and sums in two passes over it."""

from __future__ import annotations

import numba
import numpy as np
import torch

from rocketkv.ops.kernel.cpu import bits, kernel, set_threads
from rocketkv.ops.vector.cpu import add1, exponentials
from rocketkv.types import Float, Int, Tensor

BLOCK_COLUMNS = 1024


def window_scores(
    queries: Float[Tensor, "B G R W D"],
    query_counts: Int[Tensor, "B"],
    keys: Float[Tensor, "B G C D"],
    key_counts: Int[Tensor, "B G"],
    *,
    scaling: float,
) -> Float[Tensor, "B G C"]:
    """The reference's scores, in float32; memory is O(R W C), one KV head of one row at a time.

    Raises:
        BackendError: for tensors that are not on the CPU, or of another dtype than float32, bfloat16 and float16.
    """
    bits("window_scores", queries[:0]), bits("window_scores", keys[:0])
    queries, keys = queries.detach(), keys.detach()
    batch, heads, columns = keys.shape[:3]
    window = queries.shape[3]
    scores = torch.full((batch, heads, columns), -torch.inf, dtype=torch.float32, device="cpu")
    set_threads()
    for b, own in enumerate(query_counts.tolist()):
        count = min(own, columns)
        for g, held in enumerate(key_counts[b].tolist()):
            first = columns - held
            if count == 0 or first >= columns - count:
                continue
            voters = queries[b, g, :, window - count :].float().flatten(0, 1) * scaling  # [R w, D]
            logits = voters @ keys[b, g, first:].float().T  # [R w, C - first]
            _votes(logits.numpy(), count, scores[b, g, first:].numpy())
    return scores


@kernel(parallel=True)
def _votes(logits, count, out):  # type: ignore[no-untyped-def]
    """Softmax of each row over the columns up to its own, summed over the rows, into all but the last `count` columns.

    Rows are [R, count] queries; query i of a head stands at column C - count + i. The logits are overwritten.
    """
    rows, columns = logits.shape
    candidates = columns - count
    blocks = (candidates + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
    shares = np.empty(rows, np.float32)
    for row in numba.prange(rows):
        seen = logits[row, : candidates + row % count + 1]
        shares[row] = np.float32(1) / exponentials(seen, seen.max())
    for block in numba.prange(blocks):
        first, stop = block * BLOCK_COLUMNS, min(candidates, (block + 1) * BLOCK_COLUMNS)
        out[first:stop] = 0
        for row in range(rows):
            add1(out[first:stop], shares[row], logits[row], first)
