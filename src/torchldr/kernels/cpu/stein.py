"""The scan (C is on its way)."""
