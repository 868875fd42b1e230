"""Simulated drivers, which `nvc-cli sim` makes."""
