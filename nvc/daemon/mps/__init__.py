"""Servers of MPS: one for each user and GPU, what they answer, and what is kept of them."""
