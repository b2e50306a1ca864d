"""What is kept between calls has values, whoever asked for it first."""

import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchldr.functional import constants
from torchldr.functional.constants import kept


@pytest.fixture
def ones():
    made = []

    @kept(2)
    def make(n, device):
        made.append(n)
        return torch.ones(n, device=device)

    make.made = made
    return make


def test_a_constant_is_made_once_and_a_few_are_kept(ones):
    assert ones(3, "cpu") is ones(3, "cpu")
    for n in (4, 5, 3):
        assert len(ones(n, "cpu")) == n
    assert ones.made == [3, 4, 5, 3]


def test_nothing_of_a_graph_that_is_captured_is_kept(ones, monkeypatch):
    """Nothing runs then: a tensor that is made has no values yet, and later calls would read them."""
    monkeypatch.setattr(constants, "_capturing", lambda: True)
    first = ones(3, "cpu")
    monkeypatch.undo()
    assert ones(3, "cpu") is not first
    monkeypatch.setattr(constants, "_capturing", lambda: True)
    assert ones(3, "cpu") is ones(3, "cpu")  # what was kept before serves


def test_what_a_graph_reads_stays(ones, monkeypatch):
    """It will be read again whenever the graph is replayed, from where it was."""
    others, of_graph = (weakref.ref(ones(n, "cpu")) for n in (3, 4))
    with monkeypatch.context() as capture:
        capture.setattr(constants, "_capturing", lambda: True)
        ones(4, "cpu")
    ones(5, "cpu")  # one too many
    assert others() is None
    assert of_graph() is not None


def test_nothing_of_a_tracer_or_a_transformation_is_kept(ones):
    with FakeTensorMode():
        ones(3, "cpu")
    torch.func.grad(lambda x: (x * ones(3, "cpu")).sum())(torch.randn(3))
    torch.vmap(lambda x: x * ones(3, "cpu"))(torch.randn(2, 3))
    with torch.inference_mode():
        kept_one = ones(3, "cpu")
    assert type(kept_one) is torch.Tensor
    assert not kept_one.is_inference()
    assert kept_one.tolist() == [1, 1, 1]
    with FakeTensorMode():
        assert ones(3, "cpu") is not kept_one
