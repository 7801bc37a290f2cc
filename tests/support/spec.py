"""The algorithm once more, in float64 numpy and loops, one (row, KV head) at a time.

Written from the specification alone and sharing no code with the package: what the ops are compared with.
Arrays of one KV head: q [R, D], keys [T, D], values [T, Dv], window queries [R, W, D]; positions count from
0.
"""

import math
from fractions import Fraction

import numpy as np


def plan(context: int, t: int, head_dim: int, *, new: int = 0, window: int = 32, split: float | None = None,
         share: float = 0.5) -> dict:  # fmt: skip
    """What a prompt of `context` tokens keeps, and its page size; `dense` if the budget covers everything."""
    total = context + new
    c = total / t
    if c <= 1:
        return {"dense": True, "kept": context, "page": 1, "rank": head_dim, "read": total}
    r = min(0.2 + 0.06 * math.log2(c), 0.8) if split is None else split
    kept = int(total / c**r) - new
    for floor in (t, window + 1):
        if kept < floor:
            kept = floor
    if kept > context:
        kept = context
    page = page_size(kept + new, t)
    return {
        "dense": False,
        "kept": kept,
        "page": page,
        "rank": rank(kept + new, t, page, head_dim, share),
        "read": read(t, share),
    }


def page_size(tokens: int, t: int) -> int:
    """Tokens per page for a sequence of `tokens`."""
    c2 = tokens / t if tokens > t else 1.0
    size = 1
    while size * size < c2:
        size += 1
    return 1 if size > c2 else size


def read(t: int, share: float) -> int:
    """Tokens attended in a sparse step; `share` of t is spent before that."""
    return math.floor((1 - ratio(share)) * t)


def ratio(share: float) -> Fraction:
    """The ratio of small whole numbers that a share was written for."""
    return Fraction(share).limit_denominator(1000)


def rank(tokens: int, t: int, page: int, head_dim: int, share: float = 0.5) -> int:
    """Head dimensions read at a step with `tokens` held."""
    value = (math.floor(2 * ratio(share) * t) * page * head_dim) // tokens
    return 1 if value < 1 else (head_dim if value > head_dim else value)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def window_votes(queries: np.ndarray, keys: np.ndarray, scaling: float) -> np.ndarray:
    """Attention mass that the window pays to each token before it, [T - W]."""
    heads, window, _ = queries.shape
    tokens = len(keys)
    votes = np.zeros(tokens)
    for head in range(heads):
        for i in range(window):
            stands_at = tokens - window + i
            logits = np.array([queries[head, i] @ keys[j] * scaling for j in range(stands_at + 1)])
            votes[: stands_at + 1] += softmax(logits)
    return votes[: tokens - window]


def pooled(votes: np.ndarray, width: int, kind: str) -> np.ndarray:
    """Max or mean of each vote and its neighbours, as far as there are any."""
    reach = width // 2
    fold = max if kind == "max" else lambda near: sum(near) / len(near)
    return np.array([fold(votes[max(0, i - reach) : i + reach + 1].tolist()) for i in range(len(votes))])


def kept_tokens(scores: np.ndarray, window: int, kept: int) -> list[int]:
    """Positions that survive eviction: the best `kept - window` by `scores`, then the window."""
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: kept - window]
    return sorted(best) + list(range(len(scores), len(scores) + window))


def page_bounds(keys: np.ndarray, page: int) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and minimum of each page's keys, [P, D] each."""
    starts = range(0, len(keys), page)
    return (
        np.array([keys[s : s + page].max(0) for s in starts]),
        np.array([keys[s : s + page].min(0) for s in starts]),
    )


def token_scores(q: np.ndarray, keys: np.ndarray, page: int, dims_read: int, scaling: float) -> np.ndarray:
    """The estimated share of attention of every token, [T], averaged over the group."""
    group, head_dim = q.shape
    tokens = len(keys)
    upper, lower = page_bounds(keys, page)
    size = [sum(abs(q[h, d]) for h in range(group)) for d in range(head_dim)]
    dims = sorted(range(head_dim), key=lambda d: (-size[d], d))[:dims_read]
    total = np.zeros(tokens)
    for h in range(group):
        near, whole = sum(abs(q[h, d]) for d in dims), sum(abs(q[h]))
        temperature = math.sqrt(near / whole) if near > 0 else 1.0
        logits = np.zeros(tokens)
        for j in range(tokens):
            for d in dims:
                bound = upper if sum(q[:, d]) >= 0 else lower
                logits[j] += q[h, d] * bound[j // page, d]
        total += softmax(logits * scaling / temperature)
    return total / group


def best_tokens(scores: np.ndarray, count: int, *, sink: int = 0, local: int = 0) -> list[int]:
    """The `count` positions that are read, in order."""
    tokens = len(scores)

    def order(i: int) -> tuple[bool, float, int]:
        always = i < sink or i >= tokens - local
        return (not always, 0.0 if always else -scores[i], i)

    return sorted(sorted(range(tokens), key=order)[:count])


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scaling: float) -> np.ndarray:
    """Exact attention of each query head, [R, Dv]."""
    return softmax(q @ keys.T * scaling) @ values


def right_choice(scores: np.ndarray, chosen: list[int], count: int, tolerance: float) -> bool:
    """Whether `chosen` are `count` different tokens of which none scores below the best left out by more than
    allowed.

    `tolerance` is relative: scores are probabilities.
    """
    if len(set(chosen)) != count or len(chosen) != count:
        return False
    left = np.delete(scores, chosen)
    return len(left) == 0 or count == 0 or scores[chosen].min() >= left.max() * (1 - tolerance)
