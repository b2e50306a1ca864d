"""Finished runs: the ledger, its records, and the selected networks beside it. `published/` is our own."""
