"""Closure rules of Fastfood: diagonals go into its own."""

from __future__ import annotations

from ...algebra.members import scales_columns, scales_rows
from . import Fastfood

scales_rows(Fastfood, "S")
scales_columns(Fastfood, "B")
