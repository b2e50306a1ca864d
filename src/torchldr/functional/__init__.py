"""Pure functions of tensors: the products, each beside its slow reference."""
