"""The loops of the port product: leaves, joining (`up`) and parting (`down`) of blocks, their spectra."""
