"""Checkpoints without their model's code: from files of tensors to folders of structured matrices."""
