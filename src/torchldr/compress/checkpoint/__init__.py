"""Weights without the code of their model: files of tensors in, folders of structured matrices out."""
