"""What nvc-cdi-hook does while a container starts: steps become one plan, which the applier executes.

This runs in createContainer hooks: in the container's namespaces, with the host's files still at `/`.
"""
