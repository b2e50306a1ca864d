"""`torchldr analyze` and `torchldr compress`.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done; 1 failed, with one line that says
why, and nothing written; 2 wrong use; 130 interrupted: `compress` has then written nothing, and `analyze`
shows what it found so far.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, wrong_use
from .printing import bar, say, width

if TYPE_CHECKING:
    from ..compress.budget import Budget
    from ..compress.report import CompressionReport
    from ..compress.selection import Spec

INTERRUPTED = 130
File = Annotated[
    Path, typer.Argument(help="A .safetensors file, or a folder with such files.", show_default=False)
]
Structures = Annotated[
    list[str] | None,
    typer.Option(help="Classes to try, by spaces or commas; `torchldr structures` lists them."),
]
Skip = Annotated[list[str] | None, typer.Option(help="Names or patterns (quoted) of tensors to leave alone.")]
MinFeatures = Annotated[int, typer.Option(min=1, help="Leave matrices with fewer rows or columns alone.")]
Batch = Annotated[int, typer.Option(min=1, help="Vectors per call, for a budget in ms.")]
TimeLimit = Annotated[
    float | None, typer.Option(min=1e-3, help="Limit in seconds; with a short one it tries less.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")]


def analyze_command(
    file: File,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="0.1, 1/10, 10%, 50000 (parameters), '200 kB' or '0.5 ms'; default 1/2 to 1/20."),
    ] = None,
    structures: Structures = None,
    ranks: Annotated[
        list[int] | None, typer.Option(min=1, help="Ranks to try, however long it takes.")
    ] = None,
    skip: Skip = None,
    min_features: MinFeatures = 32,
    batch: Batch = 1,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw residual against size to this file.")] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the plan for a single --budget, for `compress --plan`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which structures the matrices of a checkpoint could take.

    Residual against size, class by class, and the best choice for each budget.
    """
    from ..compress.analysis.analyze import BUDGETS, analyze
    from ..compress.analysis.result import check_picture
    from ..compress.structure import write_plan

    budgets = [_budget(text, batch) for text in budget or ()]
    structures = _check_structures(structures)
    if save_plan is not None and len(budgets) != 1:
        raise typer.BadParameter("--save-plan needs a single --budget.")
    _spare(file, save_plan, "--save-plan")
    _spare(file, plot, "--plot")
    if plot is not None:
        with wrong_use("--plot"):
            check_picture(plot)
    with _searching(), bar() as report:
        found = analyze(
            file, budget=budgets or BUDGETS, structures=structures, ranks=ranks, skip=skip or (),
            min_features=min_features, time_limit=time_limit, seed=seed, progress=report,
        )  # fmt: skip
        plan = found.plan() if save_plan is not None else {}
    print(found.to_json() if as_json else found.text(width()))
    if plot is not None:
        found.plot(plot)
        say(f"picture: {plot}")
    if save_plan is not None:
        write_plan(plan, save_plan)
        say(f"plan: {save_plan}")
    if found.interrupted:
        say("interrupted: not all classes were tried")
        raise typer.Exit(INTERRUPTED)


def compress_command(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", show_default=False)],
    budget: Annotated[
        str | None, typer.Option(help="0.1, 1/10, 10%, 50000 (parameters), '200 kB' or '0.5 ms'.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="JSON with names and patterns to structures.")] = None,
    structures: Structures = None,
    skip: Skip = None,
    min_features: MinFeatures = 32,
    batch: Batch = 1,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    dense: Annotated[
        Path | None,
        typer.Option(help="Also write the approximations as dense weights, to a .safetensors file."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A file with lines of text, to calibrate the model of a folder.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing compressed model and --dense.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compress the matrices of a checkpoint to a budget.

    Or by a plan, which `torchldr analyze` writes. Other tensors are copied.
    A folder with a config.json is a Hugging Face model, and so is the result.
    """
    from ..compress.candidates import CANDIDATES
    from ..compress.checkpoint.folder import check_target, dense_beside, save_weights
    from ..compress.checkpoint.weights import compress_weights
    from ..compress.structure import read_plan

    if (budget is None) == (plan is None):
        raise typer.BadParameter("give either --budget or --plan.")
    if plan is not None and structures:
        raise typer.BadParameter("--structures goes with --budget; a plan names its own.")
    structures = _check_structures(structures)
    check_target(out, force)
    if dense is not None:
        _check_dense(dense, file, out, force)
    spec: Spec = _budget(budget, batch) if budget is not None else read_plan(plan or "")
    model = file.is_dir() and (file / "config.json").is_file()
    if text is not None and not model:
        raise typer.BadParameter("--text goes with a folder that has a config.json.")
    search: dict[str, Any] = {"structures": structures or CANDIDATES, "time_limit": time_limit, "seed": seed}
    search |= {"skip": skip or (), "min_features": min_features}
    if model:
        _spare(file, out, "--out")
        if dense is not None:
            raise typer.BadParameter("--dense goes with .safetensors files, not with the folder of a model.")
        with _searching(), bar() as shown:
            report = _compress_model(file, out, spec, text, force, {**search, "progress": shown})
    else:
        with _searching(), bar() as shown:
            weights, report = compress_weights(file, spec, progress=shown, **search)
            with dense_beside(weights, dense):
                save_weights(weights, out, report, force=force)
    print(report.to_json() if as_json else report.text(width()))
    say(f"written: {out}")


def _compress_model(
    folder: Path, out: Path, spec: Spec, text: Path | None, force: bool, search: dict[str, Any]
) -> CompressionReport:
    from ..hf import compress_folder

    lines = None if text is None else text.read_text(encoding="utf-8").splitlines()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = compress_folder(folder, out, spec, text=lines, force=force, **search)
    for one in caught:
        if str(one.message).startswith("compress_:"):
            say(str(one.message).replace("give loader= (batches of its inputs)", "give --text"))
    return report


def _check_dense(dense: Path, file: Path, out: Path, force: bool) -> None:
    """Raise where the plain file may not be written."""
    _spare(file, dense, "--dense")
    if out.resolve() in (dense.resolve(), *dense.resolve().parents):
        raise ValueError(
            f"--dense {dense} lies in {out}, which holds the compressed model: name another place."
        )
    if dense.is_dir():
        raise IsADirectoryError(f"--dense {dense} is a folder: name a file.")
    if dense.exists() and not force:
        raise FileExistsError(f"{dense} exists already; --force replaces it.")


def _spare(file: Path, target: Path | None, option: str) -> None:
    """Raise where an option would overwrite the checkpoint itself."""
    if target is not None and target.resolve() == file.resolve():
        raise ValueError(f"{option} {target} is the checkpoint itself: name another file.")


def _budget(text: str, batch: int) -> Budget:
    from ..compress.budget import parse_budget

    with wrong_use("--budget"):
        return parse_budget(text, batch)


def _check_structures(names: list[str] | None) -> list[str] | None:
    """The names, split at commas."""
    from ..matrices import get_structure

    parts = [part.strip() for joined in names or () for part in joined.split(",")]
    with wrong_use("--structures"):
        for name in parts:
            get_structure(name)
    return parts or None


@contextmanager
def _searching() -> Iterator[None]:
    """Report an interrupt, after which nothing was written; a budget that is too small is wrong use."""
    from ..compress.budget import BudgetError

    try:
        yield
    except BudgetError as error:
        raise typer.BadParameter(str(error), param_hint="--budget") from error
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        raise typer.Exit(INTERRUPTED) from None
