"""The structure of every weight: by a plan, or the best under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .budget import (
    Budget,
    BudgetError,
    Bytes,
    Costs,
    Latency,
    Stopwatch,
    allowance,
    check_budget,
    no_room,
)  # fmt: skip
from .candidates import Candidate, Search, Weight, at_once, charged, class_names, priced
from .errors import CHOOSING, Errors, Task, errors_of, plain_errors, within
from .session import Session
from .sharing import price_of, share_out, whole_plans
from .structure import DENSE, Structure, matching

Spec = Budget | Structure | Mapping[str, Structure]
SHARE = 0.7  # of a time limit, after which no further class is tried
WORK = 6e7  # limit of all quick projections, as `work_of` counts it: about a minute
PILOTS = 2  # weights of one shape that a slow class is tried on before all others are
_CHEAP = 1 << 16  # entries up to which a class is tried without pilots
_MANY = 1 << 24  # entries of all weights up to which every weight gets bounds
Tasks = list[tuple[int, Structure]]  # a weight's index and a structure for it
Groups = dict[tuple[str, int, int], Tasks]  # by class and shape


@dataclass(frozen=True)
class Choices:
    """What was found for the weights.

    `alone` has the best plan that uses one class and dense weights, shared out by error. `uniform` has plans
    of one class with the same share for every weight. Measured on the outputs, either may beat `structures`.
    """

    structures: list[Structure]  # one for each weight
    stays: dict[str, str] = field(default_factory=dict)  # why weights stay dense, by name
    alone: list[list[Structure]] = field(default_factory=list)
    uniform: list[list[Structure]] = field(default_factory=list)
    notes: tuple[str, ...] = ()  # what was skipped, and why
    stopwatch: Stopwatch | None = None  # the timings, for a latency budget


def check_spec(who: str, spec: object) -> None:
    """Raise unless this is a budget or a plan."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            if not isinstance(key, str):
                raise TypeError(f"{who}: the keys of a mapping are names or patterns, got {key!r}.")
            if not isinstance(value, Structure):
                raise TypeError(f"{who}: {key!r} must map to a torchldr.Structure, got {value!r}.")
    elif isinstance(spec, bool) or not isinstance(spec, float | int | Bytes | Latency | Structure):
        raise TypeError(
            f"{who}: spec must be a fraction, a number of parameters, compress.Bytes, compress.Latency, a "
            f"torchldr.Structure or a mapping of names to structures, got {spec!r}."
        )
    elif not isinstance(spec, Structure):
        check_budget(who, spec)


def check_room(who: str, spec: Spec, weights: Sequence[Weight], names: Sequence[str]) -> None:
    """Raise for a budget of parameters or bytes that is too small for any candidates, before slow work."""
    if isinstance(spec, Structure | Mapping) or not weights:
        return
    names = class_names(who, names)
    why = no_room(who, spec, weights, [_candidates(names, weight) for weight in weights])
    if why:
        raise BudgetError(why)


def _candidates(names: Sequence[str], weight: Weight) -> list[Structure]:
    """The structures of these classes that a weight may become."""
    search = Search(names)
    structures = [s for name in names for s in search.structures(name, weight)]
    if not structures:  # all would take long: take the smallest rather than none
        least = Search(names, usual=(1,), work=None)
        structures = [s for name in names for s in least.structures(name, weight)]
    return structures


def chosen(
    who: str,
    spec: Spec,
    weights: Sequence[Weight],
    left: Mapping[str, str],
    names: Sequence[str],
    session: Session,
) -> Choices:
    """The structure of every weight."""
    if isinstance(spec, Structure | Mapping):
        structures = planned(spec, weights, left, who)
        pairs = zip(weights, structures, strict=True)
        return Choices(structures, {w.name: "stays dense by the plan" for w, s in pairs if s.is_dense})
    names = class_names(who, names)
    if not weights:
        return Choices([])
    limit, unit, costs = allowance(spec, weights)
    screen = _Screen(names, weights, costs, limit, session)
    rows = screen.rows()
    taken = share_out(rows, limit, unit, who)
    structures, notes = [c.structure for c in taken], tuple(screen.notes)
    if isinstance(costs, Stopwatch):
        return Choices(structures, notes=notes, stopwatch=costs)
    alone, uniform = whole_plans(rows, limit)
    return Choices(structures, {}, alone[:1], uniform, notes)


@dataclass
class _Screen:
    """Candidates for every weight: low rank at once, other classes where they could be chosen.

    Projections in a metric are slow. So a class is skipped if a lower bound of its error rules it out. On
    large weights it is first tried on `PILOTS` of each shape, in the plain norm, which is much faster; if low
    rank is better there, the class is skipped for that shape. ("Low rank" means every class whose nearest
    members of all ranks come from one decomposition.)
    """

    names: Sequence[str]  # of the classes
    weights: Sequence[Weight]
    costs: Costs
    limit: float
    session: Session

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.work = WORK
        self.shapes = [(int(m), int(n)) for m, n in (weight.matrices[0].shape for weight in self.weights)]
        self.low: list[list[Structure]] = []  # each weight's structures of low rank

    def rows(self) -> list[list[Candidate]]:
        """The candidates of every weight, the weight itself among them, by growing cost."""
        quick = {name for name in self.names if at_once(name)}
        others: list[list[Structure]] = []
        for weight in self.weights:
            structures = _candidates(self.names, weight)
            self.low.append([s for s in structures if s.name in quick])
            others.append([s for s in structures if s.name not in quick])
        some = self._bounded()
        bounded = [each if place in some else [] for place, each in enumerate(others)]
        self.errors = errors_of(self.session, CHOOSING, self.weights, [*enumerate(self.low)])
        both = zip(self.weights, self.low, bounded, strict=True)
        pairs = [plain_errors(weight, low, each, self.session.seed) for weight, low, each in both]
        self.plain, bounds = [plain for plain, _ in pairs], [least for _, least in pairs]
        small, large = self._hopeful(bounds)
        pilots = {key: _pilots(tasks) for key, tasks in large.items()}
        self._try([task for tasks in pilots.values() for task in tasks], plain=True)
        won = {key for key in pilots if any(self._wins(i, s) for i, s in pilots[key])}
        for name, m, n in sorted(set(pilots) - won):
            tried = len({i for i, _ in pilots[name, m, n]})
            self.notes.append(f"{name} was tried only on {tried} of {m} x {n}, where others were better")
        for i, each in enumerate(others):
            for s in each if not bounded[i] else ():
                if (key := (s.name, *self.shapes[i])) in won:
                    large[key].append((i, s))
        self._try(small)
        self._try([task for key, tasks in large.items() if key in won for task in tasks])
        bare = [i for i, each in enumerate(others) if each and not self.errors[i]]  # the time ran out
        self._try([(i, self._cheapest(i, others[i])) for i in bare], hurry=False)
        return [self._row(i, errors) for i, errors in enumerate(self.errors)]

    def _cheapest(self, i: int, some: Sequence[Structure]) -> Structure:
        costs = self.costs(self.weights[i], some)
        return some[costs.index(min(costs))]

    def _row(self, i: int, errors: Mapping[Structure, float]) -> list[Candidate]:
        row = priced(self.weights[i], errors)
        return charged(row, self.costs(self.weights[i], [candidate.structure for candidate in row]))

    def _hopeful(self, bounds: Errors) -> tuple[Tasks, Groups]:
        """The other structures that a budget could choose: small ones, and large ones in groups.

        With low rank alone, in the plain norm, the budget sets a price for each unit of cost. A structure is
        ruled out if its bound plus its price exceeds the best such sum of low rank.
        """
        rows = [self._row(i, errors) for i, errors in enumerate(self.plain)]
        price = price_of(rows, self.limit) if all(self.low) else 0.0
        found = []
        for i, (row, least) in enumerate(zip(rows, bounds, strict=True)):
            best = min(candidate.error + price * candidate.cost for candidate in row)
            costs = self.costs(self.weights[i], list(least))
            for (structure, error), cost in zip(least.items(), costs, strict=True):
                if not all(self.low) or error + price * cost < best:
                    found.append((error + price * cost - best, i, structure))
        dropped = sum(map(len, bounds)) - len(found)
        if dropped:
            self.notes.append(
                f"{dropped} candidates were skipped: a lower bound on their residual ruled them out"
            )
        small: Tasks = []
        large: Groups = {}
        for _, i, structure in sorted(found, key=lambda entry: (entry[2].rank or 0, entry[0], entry[1])):
            m, n = self.shapes[i]
            cheap = m * n <= _CHEAP or not all(self.low)
            (small if cheap else large.setdefault((structure.name, m, n), [])).append((i, structure))
        return small, large

    def _bounded(self) -> set[int]:
        """The weights that get bounds for all classes; in a large model small ones and two of each shape."""
        sizes = [m * n for m, n in self.shapes]
        if sum(sizes) <= _MANY or not all(self.low):
            return set(range(len(sizes)))
        first = {shape: i for i, shape in reversed([*enumerate(self.shapes)])}
        last = {shape: i for i, shape in enumerate(self.shapes)}
        cheap = {i for i, size in enumerate(sizes) if size <= _CHEAP}
        return {*first.values(), *last.values(), *cheap}

    def _try(self, tasks: Tasks, plain: bool = False, hurry: bool = True) -> None:
        """Compute the errors of these tasks; in a hurry only as far as work and time limit allow."""
        given: list[Task] = [
            (i, [s]) for i, s in sorted(tasks, key=lambda task: (task[1].rank or 0, task[0]))
        ]
        if hurry:
            given, self.work = within(given, self.weights, self.work)
        share = SHARE if hurry else None
        found = errors_of(self.session, CHOOSING, self.weights, given, share=share, plain=plain)
        for known, new in zip(self.plain if plain else self.errors, found, strict=True):
            known |= new
        if missed := len(tasks) - sum(map(len, found)):
            self.notes.append(f"{missed} candidates were skipped because they would take long")

    def _wins(self, i: int, structure: Structure) -> bool:
        """Whether a structure beats low rank at equal or lower cost, in the plain norm."""
        if structure not in self.plain[i]:
            return False
        row = {c.structure: c for c in self._row(i, self.plain[i])}
        mine = row[structure]
        rivals = [row[s] for s in self.low[i] if row[s].cost <= mine.cost]
        return all(mine.error < rival.error for rival in rivals)


def _pilots(tasks: Tasks) -> Tasks:
    """The first tasks of a class and shape: a few weights, at their lowest rank."""
    places = list(dict.fromkeys(i for i, _ in tasks))[:PILOTS]
    lowest = {i: min((s.rank or 0) for j, s in tasks if j == i) for i in places}
    return [(i, s) for i, s in tasks if i in lowest and (s.rank or 0) == lowest[i]]


def planned(
    spec: Structure | Mapping[str, Structure],
    weights: Sequence[Weight],
    left: Mapping[str, str],
    who: str = "compress_",
) -> list[Structure]:
    """A plan's structure for every weight, checked against its shape.

    Raises:
        ValueError: for an entry that matches nothing, or a structure that does not fit.
    """
    if isinstance(spec, Structure):
        chosen = [spec] * len(weights)
    else:
        keys = [matching(spec, weight.aliases) for weight in weights]
        chosen = [DENSE if key is None else spec[key] for key in keys]
        for key in spec:
            if not any(matching({key: spec[key]}, weight.aliases) for weight in weights):
                what = "tensor" if weights and all(w.kind == "tensor" for w in weights) else "layer"
                why = next((f" ({name} {left[name]})" for name in (key, f"{key}.weight") if name in left), "")
                raise ValueError(f"{who}: {key!r} matches no {what} that can be replaced{why}.")
    for weight, structure in zip(weights, chosen, strict=True):
        for W in weight.matrices:
            try:
                structure.parameters(*W.shape)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{who}: {weight.name}: {error}") from None
    return chosen
