"""A clock that stands still unless a test moves it."""


class Clock:
    """Called for the time, as the clocks of the standard library are; a test sets `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """The time."""
        return self.seconds
