"""The paper's networks for images, one at a time (`images`) and with a replica axis (`network`)."""
