"""What goes wrong with a sweep, said in one line."""


class TaskError(ValueError):
    """A task has no examples for what was asked; the message says why and the way out."""
