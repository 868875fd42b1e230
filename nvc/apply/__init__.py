"""Effects: a plan becomes a program of descriptors, and the program is executed in the container."""
