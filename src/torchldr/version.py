"""The version, in its own module, so that others can read it without importing the package."""

__version__ = "0.3.0"
