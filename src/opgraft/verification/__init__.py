"""The checker: whether a kernel and its gradient are right, and what is wrong with them."""
