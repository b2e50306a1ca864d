"""The paper's accelerations over an unstructured product: a row for each n, a column for each rank."""

from ...core.rules import rule
from . import LowRank

ACCELERATION = (
    (5.15e1, 2.43e1, 2.46e1, 2.08e1, 1.81e1),
    (1.39e2, 5.41e1, 5.66e1, 4.62e1, 3.43e1),
    (4.14e2, 1.60e2, 1.71e2, 1.05e2, 6.90e1),
    (2.38e3, 8.71e2, 7.46e2, 4.73e2, 3.59e2),
    (5.96e3, 1.75e3, 1.65e3, 1.13e3, 8.86e2),
    (8.35e3, 3.44e3, 3.40e3, 2.29e3, 1.74e3),
    (1.79e4, 7.50e3, 7.53e3, 4.91e3, 3.70e3),
)


@rule("paper_acceleration", LowRank)
def _() -> tuple[tuple[float, ...], ...]:
    return ACCELERATION
