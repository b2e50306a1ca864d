"""`torchldr` and `python -m torchldr`: the command line, or what to install for it."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line of `torchldr.cli`."""
    gc.set_threshold(100_000)  # objects made at start-up stay: collecting garbage would take a tenth of it
    try:
        import rich  # noqa: F401 -- tables and help need it later

        from torchldr.cli import main as run
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(
            f"ImportError: the torchldr command needs {package}; pip install torchldr[cli]", file=sys.stderr
        )
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
