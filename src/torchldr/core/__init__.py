"""The foundation: linear maps, structured matrices and their products.

linear_map     a matrix known by its products, and the operations of its algebra
contract       what a structured class must, should and may define
matrix         `StructuredMatrix`, built on that
stacks         matrices with leading axes
choice         the choice between a class's two products, its own and the dense matrix
multiply       a product by the choice
products       the frame of every product: checks, axes, dtypes
owned          gradients in the tensor's format, in their own memory
registry       classes by name, `structures` for users; `rules` by operation and class
storage        weights in few bits
pretrained     changed layers in the config of a Hugging Face model
checks         checks of arguments
"""
