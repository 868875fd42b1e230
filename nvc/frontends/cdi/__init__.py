"""Container Device Interface: specifications that engines read, and the hooks that they name.

Nothing here is on the way of `configure`; only `nvc.frontends.cdi.hooks` runs while a container starts.
"""
