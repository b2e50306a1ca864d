"""The version, in a module of its own so that others can name it without importing the package above them."""

__version__ = "0.3.0"
