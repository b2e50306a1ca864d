"""The paper has this class but does not time it."""

from ...core.rules import rule
from . import LDRTridiagonal


@rule("paper_acceleration", LDRTridiagonal)
def _() -> tuple[tuple[float, ...], ...]:
    return ()
