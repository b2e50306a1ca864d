"""The tables of the documentation, by where their numbers come from; `scripts/fill_pages.py` writes them."""
