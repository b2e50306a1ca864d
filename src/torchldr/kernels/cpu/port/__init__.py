"""The loops of the port product: leaves, `levels` of joined blocks, their spectra."""
