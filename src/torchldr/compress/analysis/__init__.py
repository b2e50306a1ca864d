"""What every weight could become: `torchldr.analyze`."""
