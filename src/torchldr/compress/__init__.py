"""Whole models: what their weights could become, dense layers replaced by structured ones, and back."""

from .analyze_result import Analysis, Plan, Trial, WeightAnalysis
from .analyze_weights import analyze
from .api import compress_, materialize_
from .budget import Bytes, Latency, parse_budget
from .finetune_groups import parameter_groups
from .finetune_model import FinetuneResult, finetune
from .finetune_teacher import Distillation
from .report import CompressionReport, LayerReport
from .storage import load_compressed, save_compressed
from .structure import Structure
from .tensors_compress import compress_weights
from .tensors_plan import read_plan, write_plan
from .tensors_storage import load_weights, save_weights

__all__ = [
    "Analysis",
    "Bytes",
    "CompressionReport",
    "Distillation",
    "FinetuneResult",
    "Latency",
    "LayerReport",
    "Plan",
    "Structure",
    "Trial",
    "WeightAnalysis",
    "analyze",
    "compress_",
    "compress_weights",
    "finetune",
    "load_compressed",
    "load_weights",
    "materialize_",
    "parameter_groups",
    "parse_budget",
    "read_plan",
    "save_compressed",
    "save_weights",
    "write_plan",
]
