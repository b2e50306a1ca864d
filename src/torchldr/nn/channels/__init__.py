"""Channel maps with structured matrices: one matrix for all channels."""
