"""The conformance suite: what every structured class must satisfy, for our classes and yours.

    from torchldr.testing import contract

    test_contract = contract(MyClass)

gives a pytest case for each check: values, transpose, gradients, dtypes, torch.func, compile, export, ..
`check_structure(MyClass)` runs those that need nothing but torch's eager mode, in one call.
"""

from .checks import (
    BATCHES,
    NEAR_ONE,
    REGIMES,
    SHAPES,
    cases,
    check_algebra,
    check_displacement,
    check_gradients,
    check_layer,
    check_low_precision,
    check_rows,
    check_values,
    dot_test,
    fits,
    forced,
    has_operators,
    member,
    tolerance,
)
from .contract import EAGER, TRANSFORMATIONS, check_structure, contract
from .transformations import layer_of

__all__ = [
    "BATCHES",
    "EAGER",
    "NEAR_ONE",
    "REGIMES",
    "SHAPES",
    "TRANSFORMATIONS",
    "cases",
    "check_algebra",
    "check_displacement",
    "check_gradients",
    "check_layer",
    "check_low_precision",
    "check_rows",
    "check_structure",
    "check_values",
    "contract",
    "dot_test",
    "fits",
    "forced",
    "has_operators",
    "layer_of",
    "member",
    "tolerance",
]
