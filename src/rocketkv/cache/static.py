"""A decode step whose shapes do not follow the lengths, so that a CUDA graph can hold it: one layer, one page layout.

An ordinary step asks the device how long the longest segment is, how many pages it has and how many tokens are read.
Here these are maxima, fixed when pages are laid out; lengths, ranks and counts stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rocketkv.cache.groups import Group, take_token
from rocketkv.cache.ragged import RaggedLayer
from rocketkv.cache.store import view_rows
from rocketkv.ops.dispatch import op
from rocketkv.ops.errors import BackendError
from rocketkv.types import Float, Int, Tensor

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes work on fixed tensors, without doing it, and returns what does it each time it is called."""


class StaticStep:
    """Append, bounds, selection and attention of one token per row, for the layer's present page layout.

    Making one asks the device for the maxima; afterwards no Python value depends on a length, until the layer lays out
    pages anew, grows or changes its rows. From then on lengths are counted up in place.

    Raises:
        BackendError: for a selector that reads by another op, and for keys in another basis than the model's.
    """

    def __init__(self, layer: RaggedLayer, scaling: float) -> None:
        for group in layer.groups:
            if not (group.selector.reads_all or group.selector.hybrid_options is not None):
                raise BackendError(
                    f"{type(group.selector).__name__} has no step of fixed shapes: decode without a CUDA graph"
                )
        if layer.basis is not None:
            raise BackendError("keys in a basis of their own have no step of fixed shapes: decode without a CUDA graph")
        self.kv, self.candidates, self.groups, self.scaling = layer.kv, layer.candidates, layer.groups, scaling
        layer.kv.lengths = self._counted = layer.kv.lengths.clone()
        if self.candidates is not None:
            self.candidates.lengths = self.candidates.lengths.clone()
        room = (self.kv if self.candidates is None else self.candidates).capacities
        self._limits = [_limits(group, group.pick(room)) for group in self.groups]

    def serves(self, layer: RaggedLayer) -> bool:
        """Whether nothing else has laid out pages, appended or moved rows since this step was made."""
        same_tables = self.kv is layer.kv and self.candidates is layer.candidates and self.groups is layer.groups
        return same_tables and self._counted is layer.kv.lengths

    def append(
        self, keys: Float[Tensor, "B G D"], values: Float[Tensor, "B G Dv"], row_tokens: Int[Tensor, "B"]
    ) -> None:
        """Take one token per row, its last of `row_tokens`. There must be room, and no event due."""
        kv, candidates = self.kv, self.candidates
        op("append_token", "write_token", "triton")(keys, values, kv)
        if kv.positions is not None:
            kv.positions[kv.starts + kv.lengths] = row_tokens[:, None] - 1
        if candidates is not None:
            candidates.slots[candidates.starts + candidates.lengths] = kv.lengths.int()
            candidates.lengths += 1
        kv.lengths += 1
        lengths = kv.lengths if candidates is None else candidates.lengths
        for group in self.groups:
            take_token(group, lengths, keys, values, "triton")

    def read(self, q: Float[Tensor, "B G R D"]) -> Float[Tensor, "B G R Dv"]:
        """Attention over the tokens that each row's selector chooses."""
        out = q.new_empty(*q.shape[:-1], self.kv.values.shape[-1])
        for group, limits in zip(self.groups, self._limits, strict=True):
            out[slice(None) if group.rows is None else group.rows] = self._read_group(group, group.pick(q), *limits)
        return out

    def _read_group(self, group: Group, q: Tensor, pages: int, read: int) -> Float[Tensor, "b G R Dv"]:
        kv, candidates = view_rows(self.kv, group.rows), view_rows(self.candidates, group.rows)
        lengths = kv.lengths if candidates is None else candidates.lengths
        options = group.selector.hybrid_options
        if options is not None:
            hybrid = op("hybrid_attend", "hybrid_attend_within", "triton")
            inputs = (q, kv, candidates, group.bounds, lengths, group.budget_tokens)
            return hybrid(*inputs, pages=pages, read=read, scaling=self.scaling, **options)
        slots = None
        if candidates is not None:
            ordinal = torch.arange(read, device=q.device)
            held = torch.where(ordinal < lengths[..., None], ordinal, 0)
            slots = candidates.slots[candidates.starts[..., None] + held]
        return op("attend", "attend_split", "triton")(q, kv, slots, lengths, width=read, scaling=self.scaling)


def _limits(group: Group, room: Int[Tensor, "b G"]) -> tuple[int, int]:
    """The most pages of a segment, and the most tokens that one reads, up to the segment's capacity."""
    if group.selector.reads_all or group.bounds is None:
        return 0, int(room.max())
    return int(group.bounds.pitch.max()), int(group.budget_tokens.max())


class CapturedStep:
    """A layer's decode step, replayed from a graph between page layouts.

    The first token after a layout is taken in the ordinary way and read without a graph, the second compiles what is
    left to compile, the third captures; a new layout captures anew. The output is a buffer that the next step reuses.
    """

    def __init__(self, layer: RaggedLayer, scaling: float, capture: Capture | None = None) -> None:
        self.layer, self.scaling, self.captures = layer, scaling, 0
        self._capture = cuda_graph if capture is None else capture
        self._step: StaticStep | None = None
        self._replay: Callable[[], None] | None = None
        self._buffers: list[Tensor] = []

    def __call__(
        self,
        q: Float[Tensor, "B G R D"],
        keys: Float[Tensor, "B G D"],
        values: Float[Tensor, "B G Dv"],
        row_tokens: Int[Tensor, "B"],
    ) -> Float[Tensor, "B G R Dv"]:
        """Take one token per row, its last of `row_tokens`, and attend."""
        if self._step is None or not self._step.serves(self.layer) or not self.layer.take_quiet_step():
            self.layer.append(keys, values, row_tokens)
            self._step, self._replay = StaticStep(self.layer, self.scaling), None
            self._buffers = [q.new_empty(*q.shape[:-1], values.shape[-1])]
            return self._step.read(q)
        inputs = (q, keys, values, row_tokens)
        if len(self._buffers) == 1:
            self._buffers += [tensor.clone() for tensor in inputs]
            self._work()
            return self._buffers[0]
        for buffer, tensor in zip(self._buffers[1:], inputs, strict=True):
            buffer.copy_(tensor)
        if self._replay is None:
            self._replay = self._capture(self._work)
            self.captures += 1
        self._replay()
        return self._buffers[0]

    def _work(self) -> None:
        assert self._step is not None
        out, q, keys, values, row_tokens = self._buffers
        self._step.append(keys, values, row_tokens)
        out.copy_(self._step.read(q))


def cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Capture work on CUDA tensors in a graph; every kernel in it must have run once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
