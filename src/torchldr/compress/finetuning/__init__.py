"""Training a compressed model further: `torchldr.finetune`."""
