"""One HTML page of everything in the ledger, in one file that needs nothing else.

    from torchldr_paper import Ledger
    from torchldr_paper.report import report

    report(Ledger(), Path("out/report.html"))

All tables with our numbers beside the paper's, sortable and filtered by dataset and network; the
figures; and behind each number the runs that it comes from, with their configs and metrics by epoch.
On the command line: `torchldr report`.
"""

from .page import report

__all__ = ["report"]
