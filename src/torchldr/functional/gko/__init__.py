"""Solving Cauchy-like systems by elimination on generators: `elimination`."""
