"""GPUs and slices of them for containers of containerd and CRI-O that ask by annotations: the program `nvc-nri`.

It is a plugin of the Node Resource Interface: the runtime calls it for each container before it creates one, and
applies what it answers. Neither a runtime class nor CDI in the runtime's configuration is needed.
"""
