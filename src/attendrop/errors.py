"""The one exception class of the library."""


class AttendropError(ValueError):
    """A request that cannot be carried out.

    The message is one sentence or two: what was wrong, with the offending value, and what to do about it. The command
    line prints it without a traceback and exits with code 2.
    """
