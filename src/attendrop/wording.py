"""Words of messages."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
