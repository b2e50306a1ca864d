"""What `torchldr paper check` prints: every cell beside the paper's, counts, stand-ins and claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from torchldr.cli import say, show

from ..ledger.ledger import Ledger, default_results
from ..tables.check import SEEDS, VERDICTS, check, unexplained
from ..tables.claims import claims
from .sweeps import find_table, well_used

_ORDER_COLUMNS = ("table", "dataset", "model", "data", "pairs", "in_order")
_CELL_COLUMNS = (
    "table", "cell", "ours", "paper", "difference", "verdict", "seeds", "deviation", "standard_errors",
    "explained",
)  # fmt: skip
_CLAIM_COLUMNS = ("holds", "claim", "data", "source", "numbers")
_SIGNED = ("difference", "standard_errors")


def show_check(ledger: Ledger, names: Sequence[str], as_json: bool) -> None:
    """Print the check of these tables, or of all with the claims; exit with 1 where a gap is unexplained."""
    well_used(lambda: [find_table(name) for name in names])
    found = check(ledger, names)
    if not names:
        found["claims"] = claims(ledger, default_results() / "bench")
    if as_json:
        show(found, as_json)
    else:
        _show_tables(found)
    left = unexplained(found["rows"])
    if left:
        cells = ", ".join(f"{row['table']}: {row['cell']}" for row in left)
        say(f"below the paper and not explained in docs/deviations.md: {cells}.")
        raise typer.Exit(1)


def _show_tables(found: dict[str, Any]) -> None:
    title = "Official data, ours and the paper's"
    show(found["rows"], False, title=title, columns=_CELL_COLUMNS, cell=_cell)
    if found["stand_ins"]:
        title = "Stand-in data: pairs of classes that come in the paper's order"
        show(found["stand_ins"], False, title=title, columns=_ORDER_COLUMNS)
    if "claims" in found:
        show(
            found["claims"], False, title="The paper's claims on our runs", columns=_CLAIM_COLUMNS, cell=_cell
        )
        true = sum(bool(row["holds"]) for row in found["claims"])
        print(f"{true} of {len(found['claims'])} claims hold.")
    counts = found["counts"]
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    enough = counts["three seeds or more"]
    print(f"{counts['cells']} cells on official data, {enough} with {SEEDS} seeds or more:")
    print(f"{verdicts} ({counts['below and not explained']} not explained).")


def _cell(name: str, value: Any) -> str | None:
    match value:
        case bool():
            return "yes" if value else "no"
        case float() if name in _SIGNED:
            return f"{value:+.2f}"
        case float():
            return f"{value:.2f}"
    return None
