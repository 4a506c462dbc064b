"""Words of messages."""

from attendrop.wording import counts_of


def test_names_beyond_the_tenth_are_counted() -> None:
    counts = {f"label {number}": number for number in range(12)}
    found = counts_of(counts)
    assert found.startswith("'label 0' (0), 'label 1' (1)") and found.endswith("'label 9' (9) and 2 more")
