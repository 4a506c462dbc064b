"""One row of a table of results."""

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Attributes:
        figure: What was measured.
        case: On which model and batch.
        values: One for each round.
        target: The bound; None for a figure that is shown for comparison only.
        at_least: Whether the target is a lower bound.
        note: What else the reader should know.

    """

    figure: str
    case: str
    values: list[float]
    target: float | None
    at_least: bool = False
    note: str = ""

    @property
    def measured(self) -> float:
        """The median over the rounds."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target."""
        if self.target is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target
