"""Layers from channels to channels, with a structured matrix for each pair or one for all."""
