"""Layers of many replicas at once: every tensor has a replica axis in front."""
