"""Every operator that the package gives to torch: opcheck, and its plain form as the oracle."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import torchldr
from torchldr.functional.operator import OPERATORS

# Dynamic shapes are among them; by name, so that a version of torch with fewer defaults leaves none out.
UTILITIES = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
SAMPLES = [(name, i) for name, one in OPERATORS.items() for i, _ in enumerate(one.samples())]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN's, of weights that we make
every_sample = pytest.mark.parametrize(("name", "index"), SAMPLES, ids=[f"{n}-{i}" for n, i in SAMPLES])
FIRST = [
    pytest.param(*each, marks=[pytest.mark.exhaustive] if each[1] else [], id=f"{each[0]}-{each[1]}")
    for each in SAMPLES
]
first_samples = pytest.mark.parametrize(("name", "index"), FIRST)
devices = pytest.mark.parametrize("device", DEVICES)


def arguments(name: str, index: int, device: str = "cpu", dtype: torch.dtype | None = None) -> list:
    """A sample, its tensors leaves that require gradients if they have real numbers."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(index)
    return [leaf(a, device, dtype) for a in list(OPERATORS[name].samples())[index]]


def leaf(a: object, device: str, dtype: torch.dtype | None) -> object:
    if not isinstance(a, Tensor):
        return dtype if dtype and isinstance(a, torch.dtype) else a
    if not a.is_floating_point():
        return a.to(device)
    return a.detach().to(device, dtype or a.dtype, copy=True).requires_grad_()


def overload(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.torchldr, name).default


def opcheck(name: str, given: tuple, utilities: tuple[str, ...] = UTILITIES) -> None:
    found = torch.library.opcheck(overload(name), given, test_utils=utilities)
    assert found == dict.fromkeys(utilities, "SUCCESS")


def leaves(given: list) -> list[Tensor]:
    return [a for a in given if isinstance(a, Tensor) and a.requires_grad]


def test_the_list_is_complete():
    """torch knows no other operator of ours; `dir(torch.ops.torchldr)` has those in use alone."""
    assert torchldr.__version__
    known = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    ours = {name.removeprefix("torchldr::") for name in known if name.startswith("torchldr::")}
    # Those of tests, and the exporter's nodes: they stand for a layer in a program that nothing runs.
    ours = {name for name in ours if not name.startswith(("test_", "c_"))}
    assert ours == {name + suffix for name in OPERATORS for suffix in ("", "_gradient")}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_samples_of_several_shapes(name):
    samples = [
        tuple(a.shape for a in sample if isinstance(a, Tensor)) for sample in OPERATORS[name].samples()
    ]
    assert len(set(samples)) > 1


@first_samples
@devices
def test_opcheck(name, index, device):
    opcheck(name, tuple(arguments(name, index, device)))


@every_sample
def test_results_are_where_the_arguments_are(name, index):
    """A CPU's among a GPU's, even if only kept for the gradient, is refused when a CUDA graph is recorded."""
    given = arguments(name, index, "cpu")
    outputs = OPERATORS[name]._fake(*(a.to("meta") if isinstance(a, Tensor) else a for a in given))
    assert all(t.is_meta for t in (outputs if isinstance(outputs, tuple) else [outputs]))


# Compiled, the gradient is part of `test_opcheck`; alone, it is there to be derived once more.
@first_samples
@pytest.mark.parametrize(
    ("wanted", "utilities"),
    [
        ("all", UTILITIES[:-1]),
        pytest.param("all", UTILITIES, marks=pytest.mark.exhaustive),
        pytest.param("one", UTILITIES, marks=pytest.mark.exhaustive),
    ],
)
@devices
def test_opcheck_of_the_gradient(name, index, wanted, utilities, device):
    given = arguments(name, index, device)
    with torch.no_grad():
        y, saved = overload(name)(*given)
    grad = torch.randn_like(y).requires_grad_()
    schema = overload(name)._schema.arguments
    every = [
        isinstance(a, Tensor) for a, what in zip(given, schema, strict=True) if "Tensor" in str(what.type)
    ]
    one = [wanted and i == every.index(True) for i, wanted in enumerate(every)]
    opcheck(f"{name}_gradient", (grad, *given, saved or [y], every if wanted == "all" else one), utilities)


@every_sample
@devices
def test_the_plain_form_says_the_same(name, index, device):
    """Values, gradients and their gradients, in float64 where the kernel takes it."""
    given = arguments(name, index, device, torch.float64)
    results = []
    for function in (OPERATORS[name], OPERATORS[name].plain):
        torch.manual_seed(0)
        y = function(*given)
        more = {"allow_unused": True, "materialize_grads": True}
        first = torch.autograd.grad(y.sin().sum(), leaves(given), create_graph=True, **more)
        slope = sum((g * torch.randn(g.shape, dtype=g.dtype).to(device)).sum() for g in first)
        second = torch.autograd.grad(slope, leaves(given), **more)
        results.append((y, first, second))
    assert_close(*results, rtol=1e-9, atol=1e-9)
