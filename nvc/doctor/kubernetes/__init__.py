"""Checks of a node of Kubernetes, and of one claim."""
