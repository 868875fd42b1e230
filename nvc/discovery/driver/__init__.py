"""The driver's files: libraries, programs, firmware, and the ELF files and loader caches that name them."""
