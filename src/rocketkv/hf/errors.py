"""What goes wrong with a model, said in one line."""


class ModelError(ValueError):
    """A model cannot be found, read, fetched or imported; the message names the cause and the way out."""


class UnsupportedModelError(ModelError):
    """A model whose attention or cache cannot be compressed; the message names it and says why."""


class CalibrationError(ValueError):
    """A calibration cannot be done; the message says why and the way out."""


class NotAttachedError(RuntimeError):
    """A compressed cache was given to a model that is not attached."""
