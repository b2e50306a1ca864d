"""Whole models: what their weights could become, dense layers replaced by structured ones, and back."""

from .analysis.analyze import analyze
from .analysis.result import Analysis, Plan, Trial, WeightAnalysis
from .api import compress_
from .budget import Bytes, Latency, parse_budget
from .checkpoint.folder import load_weights, save_weights
from .checkpoint.weights import compress_weights
from .finetuning.groups import OPERATOR_RATE, even_factors, parameter_groups
from .finetuning.loop import FinetuneResult, Step, finetune
from .finetuning.teacher import Distillation
from .folder import load_compressed, save_compressed
from .replacing import materialize_
from .report import CompressionReport, LayerReport
from .structure import Structure, read_plan, write_plan

__all__ = [
    "OPERATOR_RATE",
    "Analysis",
    "Bytes",
    "CompressionReport",
    "Distillation",
    "FinetuneResult",
    "Latency",
    "LayerReport",
    "Plan",
    "Step",
    "Structure",
    "Trial",
    "WeightAnalysis",
    "analyze",
    "compress_",
    "compress_weights",
    "even_factors",
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
