"""What everything else stands on: linear maps, structured matrices and the ways to multiply by them.

linear_map     a matrix known by its products, and the operations of its algebra
contract       what a structured class says of itself: must, should, may
matrix         what follows from that: `StructuredMatrix`
stacks         matrices with leading axes
choice         the choice between a class's two products, its own and the dense matrix
multiply       a product by the choice
products       what happens around every product: checks, axes, dtypes
owned          gradients in the tensor's format, in memory of their own
registry       classes by name, `structures` for users; `rules` by operation and class
storage        weights in few bits
pretrained     what the config of a Hugging Face model says of its layers
checks         checks of arguments
"""
