"""Compress a Hugging Face model and fine-tune it with transformers' Trainer, which keeps checkpoints.

Two things are ours: the optimizer's parameter groups, and a loss that learns from the original model.

    pip install "torchldr[hf]"
    python examples/trainer.py
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import torchldr
from torchldr.compress import parameter_groups

WORDS, LENGTH = 50, 16


class Questions(Dataset[dict[str, Tensor]]):
    """Random words; the question is whether word 1 comes before word 2."""

    def __init__(self, count: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, WORDS, (count, LENGTH), generator=source)
        places = torch.rand(count, LENGTH, generator=source).argsort(1)[:, :2]
        self.ids.scatter_(1, places, torch.tensor([[1, 2]]).expand(count, 2))
        self.labels = (places[:, 0] < places[:, 1]).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Distilled(Trainer):  # type: ignore[misc, unused-ignore]
    """A Trainer whose loss also counts how far predictions are from a teacher's."""

    teacher: nn.Module | None = None

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        loss, output = super().compute_loss(model, inputs, return_outputs=True, **more)
        if self.teacher is not None:
            with torch.no_grad():
                told = self.teacher.to(loss.device)(input_ids=inputs["input_ids"]).logits
            ours, theirs = (logits.log_softmax(-1) for logits in (output["logits"], told))
            loss = loss + kl_div(ours, theirs, log_target=True, reduction="batchmean")
        return (loss, output) if return_outputs else loss


def train(model: nn.Module, epochs: int, lr: float, teacher: nn.Module | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=50, max_grad_norm=1.0,
            lr_scheduler_type="cosine", warmup_steps=20, report_to="none", disable_tqdm=True, seed=0,
            logging_strategy="no", save_strategy="no",
        )  # fmt: skip
        optimizer = torch.optim.AdamW(parameter_groups(model, lr))
        trainer = Distilled(model, how, train_dataset=Questions(2000, 0), optimizers=(optimizer, None))
        trainer.teacher = teacher
        trainer.train()
    model.eval().cpu()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    test = Questions(1000, 1)
    return float((model.eval()(input_ids=test.ids).logits.argmax(1) == test.labels).float().mean())


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    train(model, epochs=4, lr=1e-3)
    print(f"dense       {accuracy(model):.1%}")
    teacher = copy.deepcopy(model).eval()
    batches = [{"input_ids": part} for part in Questions(800, 2).ids.split(50)]
    report = torchldr.compress_(model, budget=0.03, loader=batches)
    print(f"compressed  {accuracy(model):.1%}, {report.parameters_after:,} parameters in layers")
    train(model, epochs=2, lr=1e-3, teacher=teacher)
    print(f"fine-tuned  {accuracy(model):.1%}")


if __name__ == "__main__":
    main()
