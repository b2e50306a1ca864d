"""What everything else stands on: linear maps, structured matrices and the ways to multiply by them.

linear_map     a matrix known by its products, and the operations of its algebra
contract       what a structured class says of itself: must, should, may
matrix         what follows from that: `StructuredMatrix`
stacks         matrices with leading axes
routes         ways to multiply, and the one place that chooses; `dense_route` has those that classes share
costs          what steps of a product cost, by which routes are compared
products       what happens around every product: checks, axes, dtypes
operator       a product as one operator, for compilers
registry       classes by name, `structures` for users; `rules` by operation and class
storage        weights in few bits
checks         checks of arguments
"""
