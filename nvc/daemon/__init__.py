"""nvcd, the daemon of slices: hands out the time of devices, and looks from outside at what slices take.

arbiter, gang, policy   whose turn it is; pure
wire, server, clients   the socket that containers see
identity, sockets       who connects, and where
asker, truth, verify    what NVML says of processes, against quotas and ledgers
watch                   exits, new containers and new GPUs, told by the kernel
control, metrics        what an operator sees
mps                     servers of tenants that are fenced by MPS
main                    starts it all
"""
