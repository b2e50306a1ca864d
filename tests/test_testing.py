"""The conformance suite itself: classes that are deliberately broken must fail it."""

import pytest
import torch

import torchldr
from torchldr import testing
from torchldr.core.rules import rule
from torchldr.testing import func

SHAPES = ((3, 5), (16, 16))


class LosesATransposedSign(torchldr.LowRank):
    def _rmatmul(self, y):
        return -super()._rmatmul(y)


class ForgetsTheCorner(torchldr.LDRSubdiagonal):
    def _matmul(self, x):
        tensors = {**self.tensors, "corner_A": torch.zeros_like(self.corner_A)}
        return torchldr.LDRSubdiagonal.unchecked(*self.shape, tensors, self.options)._matmul(x)


class CutsTheGradient(torchldr.ToeplitzLike):
    def _matmul(self, x):
        tensors = {**self.tensors, "H": self.H.detach()}
        return torchldr.ToeplitzLike.unchecked(*self.shape, tensors, self.options)._matmul(x)


class LosesDigits(torchldr.Circulant):
    def _matmul(self, x):
        return super(LosesDigits, self.to(torch.float32))._matmul(x.float()).to(x.dtype)


class ReturnsTheWrongShape(torchldr.Dense):
    structured = True  # so that it has a product of its own

    def _matmul(self, x):
        return super()._matmul(x)[..., :-1] if self.out_features > 1 else super()._matmul(x)


class TakesAllForContiguous(torchldr.LowRank):
    def _rmatmul(self, y):
        return super()._rmatmul(y.as_strided(y.shape, (y.shape[-1], 1)))


class HasTheWrongOperators(torchldr.ToeplitzLike):
    def operators(self):
        A, C = super().operators()
        return A.mT, C


class ReturnsItsInput(torchldr.Dense):
    """The first rows of the identity."""

    structured = True

    def factors(self):
        return [(torch.eye(*self.shape, dtype=self.dtype),)]

    def _matmul(self, x):
        return x[..., : self.out_features]

    def _rmatmul(self, y):
        return torch.nn.functional.pad(y, (0, self.in_features - self.out_features))


class IsTransposedWrong(torchldr.LowRank):
    pass


@rule("transpose", IsTransposedWrong)
def _(M):
    return IsTransposedWrong.unchecked(M.in_features, M.out_features, {"G": -M.H, "H": M.G}, M.options)


class IsNotLinear(torchldr.LowRank):
    scaled = ("G",)

    def factors(self):
        return [(self.G.mT, (self.H * self.G.abs().amax(-1, keepdim=True)))]

    def _matmul(self, x):
        return x @ self.to_dense().mT

    def _rmatmul(self, y):
        return y @ self.to_dense()


class LosesHalfOfItsDigits(torchldr.LowRank):
    def rmatmul(self, y, *, product="auto"):
        return super().rmatmul(y, product=product) * (1.1 if y.dtype == torch.bfloat16 else 1)


class KnowsOneLeadingAxis(torchldr.LowRank):
    at_once = ("_matmul", "_rmatmul")

    def _matmul(self, x):
        return torch.bmm(torch.bmm(x, self.H.mT), self.G) if self.leading else super()._matmul(x)

    def _rmatmul(self, y):
        return super()._rmatmul(y)


class ForgetsToTransposeAStack(torchldr.LowRank):
    at_once = ("_matmul", "_rmatmul")

    def _matmul(self, x):
        return super()._matmul(x)

    def _rmatmul(self, y):
        return -super()._rmatmul(y) if self.leading else super()._rmatmul(y)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ReturnsItsInput, "the result lies in the memory of the input"),
        (IsTransposedWrong, "M.T of"),
        (IsNotLinear, "2 M by G of"),
        (LosesHalfOfItsDigits, "rmatmul: in torch.bfloat16"),
        (LosesATransposedSign, "rmatmul, fast: the error is"),
        (ForgetsTheCorner, "the error is"),
        (CutsTheGradient, "gradient of H: the error is"),
        (LosesDigits, "the error is"),
        (ReturnsTheWrongShape, r"matmul, fast: got \(2,\)"),
        (TakesAllForContiguous, "rmatmul, fast, not contiguous: the error is"),
        (HasTheWrongOperators, "displacement of"),
    ],
)
def test_a_broken_class_fails(broken, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_structure(broken, SHAPES)


@pytest.mark.parametrize("cls", [torchldr.LowRank, torchldr.ToeplitzLike, torchldr.ACDC])
def test_a_sound_class_passes(cls):
    testing.check_structure(cls, SHAPES)


test_contract = testing.contract(torchldr.LowRank, SHAPES)


@pytest.mark.parametrize(
    ("broken", "transformation"),
    [
        (LosesATransposedSign, "transpose"),
        (CutsTheGradient, "gradients"),
        (LosesDigits, "values"),
        (HasTheWrongOperators, "displacement"),
        (KnowsOneLeadingAxis, "leading axes"),
        (ForgetsToTransposeAStack, "leading axes"),
    ],
)
def test_a_broken_class_fails_its_contract_where_it_is_broken(broken, transformation):
    with pytest.raises((AssertionError, RuntimeError)):
        testing.contract(broken, SHAPES)(transformation)


class TangentOfZero(torchldr.LowRank):
    """A custom function without forward mode, vmap or second derivatives: the bare minimum of autograd."""

    def _matmul(self, x):
        return Bare.apply(x, self.G, self.H)


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, G, H):
        ctx.save_for_backward(x, G, H)
        return (x @ H.mT) @ G

    @staticmethod
    def backward(ctx, grad):
        x, G, H = ctx.saved_tensors
        z = grad @ G.mT
        return z @ H, (x @ H.mT).mT @ grad, z.mT @ x


@pytest.mark.parametrize("name", func.TRANSFORMATIONS)
def test_a_class_that_knows_no_transformation_fails_it(name):
    testing.contract(TangentOfZero, SHAPES)("gradients")
    layer = func.func_layer(TangentOfZero, "train", "fast")
    with pytest.raises((AssertionError, RuntimeError)):
        func.check_transformation(layer, name)


def test_transformations_can_be_left_out_and_are_checked():
    (mark,) = testing.contract(torchldr.LowRank, without=("compile", "export")).pytestmark
    assert "compile" not in mark.args[1]
    assert "func" in mark.args[1]
    with pytest.raises(ValueError, match="unknown transformation 'colour'"):
        testing.contract(torchldr.LowRank, without=("colour",))


def test_a_users_class():
    class Diagonal(torchldr.StructuredMatrix, name="test_diagonal"):
        """A user's own class."""

        ranked = False
        scaled = ("d",)

        @classmethod
        def parameter_shapes(cls, out_features, in_features, rank):
            return {"d": (min(out_features, in_features),)}

        @classmethod
        def init_(cls, tensors, out_features, in_features, generator=None, **options):
            tensors["d"].normal_(generator=generator)

        def factors(self):
            W = torch.zeros(self.shape, dtype=self.dtype)
            return [(W.diagonal_scatter(self.d),)]

        def _matmul(self, x):
            k = self.d.shape[0]
            return torch.nn.functional.pad(x[..., :k] * self.d, (0, self.out_features - k))

        def _rmatmul(self, y):
            k = self.d.shape[0]
            return torch.nn.functional.pad(y[..., :k] * self.d, (0, self.in_features - k))

    try:
        testing.check_structure(Diagonal)
        layer = torchldr.StructuredLinear(5, 3, structure="test_diagonal")
        assert layer(torch.randn(2, 5)).shape == (2, 3)
    finally:
        torchldr.core.registry.REGISTRY.pop("test_diagonal")
