"""The paper's accelerations over an unstructured product: a row for each n, a column for each rank."""

from ...core.rules import rule
from . import LDRSubdiagonal

ACCELERATION = (
    (6.68e-2, 4.63e-2, 4.05e-2, 3.10e-2, 2.56e-2),
    (1.49e-1, 1.20e-1, 9.45e-2, 6.73e-2, 5.24e-2),
    (4.99e-1, 4.32e-1, 3.02e-1, 1.94e-1, 1.37e-1),
    (3.34e0, 2.57e0, 1.61e0, 1.06e0, 7.52e-1),
    (9.71e0, 6.61e0, 4.40e0, 2.46e0, 1.68e0),
    (2.12e1, 1.41e1, 8.38e0, 4.35e0, 3.00e0),
    (4.61e1, 2.82e1, 1.60e1, 8.58e0, 5.70e0),
)


@rule("paper_acceleration", LDRSubdiagonal)
def _() -> tuple[tuple[float, ...], ...]:
    return ACCELERATION
