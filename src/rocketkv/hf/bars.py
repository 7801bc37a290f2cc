"""Transformers' own progress bars: kept off, since standard error may be piped, or turned into lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars; what was set before is set again at the end."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def gguf_progress(progress: Callable[[str], None]) -> Iterator[None]:
    """Have transformers' reader of GGUF files call `progress`, once for each tenth of the tensors."""
    from transformers import modeling_gguf_pytorch_utils as reader

    def bar(tensors: Any, **_: Any) -> Iterator[Any]:
        for index, tensor in enumerate(tensors):
            if index * 10 // len(tensors) != (index - 1) * 10 // len(tensors):
                progress(f"de-quantising: {index} of {len(tensors)} tensors")
            yield tensor

    drawn = reader.tqdm
    reader.tqdm = bar
    try:
        with no_bars():
            yield
    finally:
        reader.tqdm = drawn


def only_errors() -> None:
    """Keep transformers and Python from warning on standard error; for programs that speak for themselves."""
    import sys
    import warnings

    from transformers.utils import logging

    logging.set_verbosity_error()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
