"""Which exceptions are the user's to mend, and how they read in one line. All others are bugs, and raise."""

from __future__ import annotations

from rocketkv.evals.errors import TaskError
from rocketkv.hf.errors import CalibrationError, ModelError
from rocketkv.hf.prompting import PromptError
from rocketkv.ops.errors import BackendError
from rocketkv.policies.errors import PolicyMisfitError
from rocketkv.records import RecordError

BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class UsageError(ValueError):
    """Arguments that do not fit; the message says the value, the limit and the way out."""


USER_ERRORS = (
    UsageError,
    ModelError,
    PromptError,
    BackendError,
    CalibrationError,
    PolicyMisfitError,
    RecordError,
    TaskError,
    MemoryError,
    OSError,
)


def one_line(error: Exception) -> str:
    """What a user error says, in one line."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        text = error.strerror or text
        if error.filename:
            text = f"{error.filename}: {text}"
    elif isinstance(error, MemoryError) and not str(error):
        text = "memory ran out"
    return " ".join(text.split())
