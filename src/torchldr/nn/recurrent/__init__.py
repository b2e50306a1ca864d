"""LSTM and GRU layers with structured matrices."""
