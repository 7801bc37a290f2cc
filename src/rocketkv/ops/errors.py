"""What goes wrong with a backend. Light: the command line imports it before it knows whether it needs a model."""


class BackendError(ValueError):
    """A backend was asked for that does not exist or cannot run here."""
