"""nvcd, the daemon of slices: keeps the time of devices, and verifies from outside what slices take.

    io        the event loop, sockets, clients, helper processes, news from the kernel
    schedule  the slices of each device, what is in force there, and the pace under `concurrent`
    audit     NVML's figures, checked against quotas and ledgers
    time      what nvcd does to keep time: who uses which GPU, and what came of it
    keeper    the timekeeper, a process of its own: plan, caps, the driver's calls
    control, metrics   what an operator sees
    mps       MPS servers of isolated slices
    daemon    connects the parts; main starts them
"""
