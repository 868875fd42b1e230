"""nvcd, the daemon of slices: schedules the time of devices, and verifies from outside what slices take.

    io        the event loop, sockets, clients, helper processes, news from the kernel
    schedule  the slices of each device, what is in force there, and the pace under `concurrent`
    audit     NVML's figures, checked against quotas and ledgers
    server    the protocol of the socket that containers see
    control, metrics   what an operator sees
    mps       MPS servers of isolated slices
    daemon    connects the parts; main starts them
"""
