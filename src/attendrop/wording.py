"""Words of messages."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted_rows(rows: int, what: str, windows: int) -> str:
    """Return a number of rows with what they are, such as "16 rows, 40 windows"; of whole rows without windows."""
    return f"{rows} {what}" if windows == rows else f"{rows} {what}, {counted(windows, 'window')}"
