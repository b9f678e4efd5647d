"""The rules of JAX's primitives, by kind of op."""
