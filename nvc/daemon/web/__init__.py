"""The live page of nvcd: what it shows, the process that serves it, and the page itself."""
