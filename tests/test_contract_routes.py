"""Every route of every class is forced by the contract, and listed with a cost or a reason."""

import pytest
import torch

import torchldr
from torchldr import testing
from torchldr.core.routes import Call, Route, choose

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
SHAPES = ((16, 16), (64, 64), (5, 16), (129, 64))
CALLS = [Call(3, kept=kept, needs_grad=grad) for kept in (False, True) for grad in (False, True)]


@every_class
def test_a_route_that_no_test_reaches_is_a_bug(cls):
    """The contract's cases force each route; tests/test_cuda.py forces those of a GPU."""
    asked = ({}, {"product": "port"}) if cls.name == "ldr_td" else ({},)
    shapes = ((16, 16), (5, 16)) if cls.name == "ldr_td" else SHAPES  # ports take a while to be judged
    testing.check_routes(cls, shapes, asked)


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


@every_class
def test_costs_grow_with_the_batch(cls):
    M = testing.member(cls, 256, 256, 2 if cls.ranked else None)
    for route in cls.ROUTES:
        for kept in (False, True):
            costs = [route.cost(M, Call(batch, kept=kept)) for batch in (1, 16, 256, 4096)]
            assert costs == sorted(costs)


def test_a_subclass_with_a_product_of_its_own_does_not_inherit_routes():
    class Twice(torchldr.LDRSubdiagonal):
        def _matmul(self, x):
            return 2 * torchldr.LDRSubdiagonal.unchecked(*self.shape, self.tensors, self.options).matmul(x)

    M = Twice.random(16, 16, 1, dtype=torch.float64)
    x = torch.randn(3, 16, dtype=torch.float64)
    plain = torchldr.LDRSubdiagonal.unchecked(16, 16, M.tensors, M.options)
    torch.testing.assert_close(M.matmul(x), 2 * plain.matmul(x))


def test_nor_the_dense_matrix_of_its_parent():
    class Twice(torchldr.LowRank):
        def factors(self):
            return [(2 * G, H) for G, H in super().factors()]

        def _matmul(self, x):
            return 2 * super()._matmul(x)

        def _rmatmul(self, y):
            return 2 * super()._rmatmul(y)

    testing.check_values(Twice.random(16, 16, 1, dtype=torch.float64))
