"""What a compressed model may cost: parameters, bytes or milliseconds."""
