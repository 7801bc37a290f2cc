"""What goes wrong between a policy and a model, said in one line."""


class PolicyMisfitError(ValueError):
    """What a policy was calibrated for is not the model it meets; the message has both sizes."""
