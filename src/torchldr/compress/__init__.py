"""Whole models: dense layers replaced by structured ones, and back; folders that hold them."""

from .api import compress_, materialize_
from .report import CompressionReport, LayerReport
from .storage import load_compressed, save_compressed
from .structure import Structure

__all__ = [
    "CompressionReport",
    "LayerReport",
    "Structure",
    "compress_",
    "load_compressed",
    "materialize_",
    "save_compressed",
]
