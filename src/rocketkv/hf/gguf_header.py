"""The head of a GGUF file: what it says about itself, and whether the file is whole.

Only the head is read (a few megabytes of a file of any size), so a truncated or foreign file is refused in
under a second, before anything is de-quantised. Layout: the GGUF specification, versions 2 and 3.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketkv.hf.errors import ModelError

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
DEFAULT_ALIGNMENT_BYTES = 32


@dataclass(frozen=True)
class GGUFHeader:
    """What the head of a GGUF file says.

    `metadata` holds single values only; of an array it holds the number of elements.
    """

    metadata: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]  # name -> shape, as GGUF writes it: the contiguous dimension first
    expected_bytes: int  # the least size that a file with these tensors has

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def weights(self) -> int:
        """Number of weights in all tensors."""
        return sum(_product(shape) for shape in self.tensors.values())


class _Truncated(Exception):
    """The bytes ended inside the head."""


class _Cursor:
    """Reads little-endian values one after another, and notices the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def skip(self, count: int) -> int:
        """Move on by `count` bytes and return where they began."""
        start = self.position
        if start + count > len(self.data):
            raise _Truncated
        self.position = start + count
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.skip(struct.calcsize("<" + code)))[0]

    def skip_string(self) -> None:
        self.skip(self.scalar("Q"))

    def string(self) -> str:
        start = self.skip(self.scalar("Q"))
        return self.data[start : self.position].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """A metadata value; of an array, only its length."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.scalar(_scalar_code(kind))
        element, count = self.scalar("I"), self.scalar("Q")
        if element == STRING:
            for _ in range(count):
                self.skip_string()
        elif element == ARRAY:
            for _ in range(count):
                self.value(ARRAY)
        else:
            self.skip(count * struct.calcsize("<" + _scalar_code(element)))
        return count


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read the head of the GGUF file at `path` and check that the whole file is there.

    Raises ModelError if the file is not GGUF, is of a version or byte order that is not read here, ends
    early, or names no architecture or no tensors.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                header = _parse(_Cursor(data), path)
            except _Truncated:
                raise ModelError(
                    f"{path} is truncated: it ends in its header, after {size_bytes:,} bytes; fetch it again"
                ) from None
    if size_bytes < header.expected_bytes:
        raise ModelError(
            f"{path} is truncated: {size_bytes:,} bytes, its tensors need {header.expected_bytes:,}; fetch it again"
        )
    return header


def _parse(cursor: _Cursor, path: Path) -> GGUFHeader:
    cursor.skip(len(MAGIC))
    version = cursor.scalar("I")
    if version not in (2, 3):
        cause = "it is big-endian" if version & 0xFFFF == 0 else f"it has version {version}"
        raise ModelError(f"{path} cannot be read: {cause}; little-endian GGUF of version 2 or 3 can")
    tensor_count, value_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = _checked(cursor, path)
    tensors: dict[str, tuple[int, ...]] = {}
    data_bytes = 0
    for _ in range(tensor_count):
        name = cursor.string()
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))
        kind, offset = cursor.scalar("I"), cursor.scalar("Q")
        tensors[name] = shape
        data_bytes = max(data_bytes, offset + _tensor_bytes(kind, shape, f"{path}: tensor {name}"))
    if not tensors or "general.architecture" not in metadata:
        raise ModelError(f"{path} holds no model: {len(tensors)} tensors, {len(metadata)} metadata values")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    data_start = -(-cursor.position // alignment) * alignment
    return GGUFHeader(metadata, tensors, expected_bytes=data_start + data_bytes)


def _checked(cursor: _Cursor, path: Path) -> Any:
    """The next metadata value; a type that GGUF does not have means that the bytes are damaged."""
    try:
        return cursor.value(cursor.scalar("I"))
    except KeyError as error:
        raise ModelError(f"{path} is damaged: its header has a value of unknown type {error}") from None


def _scalar_code(kind: int) -> str:
    return SCALARS[kind]


def _tensor_bytes(kind: int, shape: tuple[int, ...], where: str) -> int:
    """Bytes of a tensor of GGUF type number `kind`. Raises ModelError for a type that gguf does not know."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ModuleNotFoundError:
        raise ModelError("GGUF files need the gguf extra: pip install 'rocketkv[gguf]'") from None
    known = {int(member): member for member in GGMLQuantizationType}
    if kind not in known:
        raise ModelError(f"{where} has the type number {kind}, which the installed gguf package does not know")
    block_weights, block_bytes = GGML_QUANT_SIZES[known[kind]]
    return _product(shape) // block_weights * block_bytes


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
