"""Every route of every class is forced by the contract, and listed with a cost or a reason."""

import pytest
import torch

import torchldr
from torchldr import testing
from torchldr.core.routes import Call, Route, choose, costs_of, why_not

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
SHAPES = ((16, 16), (64, 64), (5, 16), (129, 64))
CALLS = [Call(3, kept=kept, needs_grad=grad) for kept in (False, True) for grad in (False, True)]


@every_class
def test_a_route_that_no_test_reaches_is_a_bug(cls):
    """The contract's cases force each route; tests/test_cuda.py forces those of a GPU."""
    testing.check_routes(cls, ((64, 64), (40, 64)), ({}, *cls.variants(64, 64)))


def test_a_route_that_cannot_be_forced_is_noticed():
    never = Route("never", lambda M, call: "not today", lambda M, call: 1.0, lambda M, x, transposed: x)

    class Unreached(torchldr.LowRank):
        ROUTES = (*torchldr.LowRank.ROUTES, never)

    with pytest.raises(AssertionError, match="never"):
        testing.check_routes(Unreached, SHAPES)


@every_class
def test_rows_depend_on_themselves_alone(cls):
    for shape in SHAPES:
        for regime in testing.REGIMES if testing.has_operators(cls) else [None]:
            M = testing.member(cls, *shape, 2 if cls.ranked else None, regime=regime)
            if testing.fits(M, torch.float64):
                testing.check_rows(M)


@every_class
def test_the_first_route_serves_every_call(cls):
    M = testing.member(cls, 12, 9, 1 if cls.ranked else None)
    for call in CALLS:
        for other in (call, call._replace(traced=True), call._replace(transposed=True)):
            assert cls.ROUTES[0].why_not(M, other) is None
            assert choose(M, other) in cls.ROUTES


@every_class
def test_routes_are_listed_with_a_cost_or_a_reason(cls):
    M = testing.member(cls, 64, 64, 2 if cls.ranked else None)
    for batch in (1, 64, 4096):
        table = M.routes(batch=batch, needs_grad=True)
        assert [row.route for row in table if row.chosen] == [table.chosen]
        assert {row.route for row in table} == {route.name for route in cls.ROUTES}
        assert all(row.seconds > 0 and row.why_not != "" for row in table)
        assert list(table) == sorted(table, key=lambda row: row.seconds)
        assert next(row for row in table if row.why_not is None).chosen
        assert table.to_dicts()[0]["route"] == table[0].route
        assert "inf" not in repr(table)


@every_class
def test_costs_grow_with_the_batch(cls):
    M = testing.member(cls, 256, 256, 2 if cls.ranked else None)
    for route in cls.ROUTES:
        for kept in (False, True):
            costs = [route.cost(M, Call(batch, kept=kept)) for batch in (1, 16, 256, 4096)]
            assert costs == sorted(costs)


@every_class
@pytest.mark.parametrize("shape", [(256, 256), (257, 256)])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_one_by_one_costs_as_much_as_routes_that_serve(cls, shape, needs_grad):
    """Costs tell of sizes and of the device: a kernel for a GPU is not counted on a CPU."""
    M, call = testing.member(cls, *shape, 4 if cls.ranked else None), Call(4096, needs_grad=needs_grad)
    serving = [cost for route, cost in costs_of(M, call).items() if why_not(route, M, call) is None]
    stack = {route.name: cost for route, cost in costs_of(torchldr.stack([M] * 4), call).items()}
    assert stack["one_by_one"] >= 4 * min(serving)


@every_class
def test_costs_are_those_of_the_dtype_in_which_a_route_multiplies(cls):
    """Factors in bfloat16 are multiplied in float32 on a CPU, which may have no instructions for them."""
    M = testing.member(cls, 64, 64, 2 if cls.ranked else None)
    wide, narrow = (Call(8, dtype=dtype, kept=True) for dtype in (torch.float32, torch.bfloat16))
    for route in cls.ROUTES:
        if not route.holds_dense:
            assert route.seconds(M, narrow) == route.seconds(M, wide)


class Doubling:
    """A product written anew, by way of the one that it replaces: a mixin, or the body of a subclass."""

    def factors(self):
        return [(2 * first, *others) for first, *others in super().factors()]

    def _matmul(self, x):
        return 2 * super()._matmul(x)

    def _rmatmul(self, y):
        return 2 * super()._rmatmul(y)


def doubled_mixed(cls):
    class Mixed(Doubling, cls):
        pass

    return Mixed


def doubled_below(cls):
    class Below(cls):
        def factors(self):
            return [(2 * first, *others) for first, *others in super().factors()]

        def _matmul(self, x):
            return 2 * super()._matmul(x)

        def _rmatmul(self, y):
            return 2 * super()._rmatmul(y)

    return Below


@pytest.mark.parametrize(
    ("cls", "doubled"),
    [(cls, doubled_below) for cls in CLASSES]
    + [(cls, doubled_mixed) for cls in (torchldr.LDRSubdiagonal, torchldr.ToeplitzLike)],
)
def test_a_product_that_a_subclass_writes_is_the_one_that_runs(cls, doubled):
    """What it inherits, routes, preparations, dense matrices, operators, is of another product."""
    Double = doubled(cls)
    layer = torchldr.StructuredLinear(16, 16, structure=Double, bias=False, dtype=torch.float64)
    M, x = layer.matrix(), torch.randn(3, 16, dtype=torch.float64)
    right = x @ M.to_dense().mT
    assert right.norm() > 0
    testing.check_values(M)
    torch.testing.assert_close(layer(x), right)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), right)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), right)
    several = torchldr.stack([M, M])
    for route in several.routes():
        torch.testing.assert_close(several.matmul(x, route=route.route)[1], right)
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(layer, x)(x), right)
        for plan in ("auto", "fast", "dense"):
            layer.plan = plan
            torch.testing.assert_close(layer(x), right)
