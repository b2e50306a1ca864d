"""The paper's accelerations over an unstructured product: a row for each n, a column for each rank."""

from ...core.rules import rule
from . import ToeplitzLike

ACCELERATION = (
    (3.06e-1, 2.60e-1, 2.32e-1, 1.86e-1, 1.61e-1),
    (7.34e-1, 6.21e-1, 5.18e-1, 4.00e-1, 3.28e-1),
    (1.90e0, 1.71e0, 1.38e0, 1.08e0, 8.46e-1),
    (1.23e1, 1.01e1, 7.92e0, 5.97e0, 4.62e0),
    (3.34e1, 2.73e1, 2.26e1, 1.52e1, 1.23e1),
    (6.96e1, 5.68e1, 4.19e1, 3.00e1, 2.26e1),
    (1.49e2, 1.19e2, 9.07e1, 5.46e1, 3.82e1),
)


@rule("paper_acceleration", ToeplitzLike)
def _() -> tuple[tuple[float, ...], ...]:
    return ACCELERATION
