"""What goes wrong with a model, said in one line."""


class ModelError(ValueError):
    """A model cannot be found, read, fetched or imported; the message names the cause and the way out."""
