"""Metadata is in setup.cfg; setuptools takes cffi's modules only as an argument."""

from setuptools import setup

setup(cffi_modules=["native/syscalls/build.py:ffi"])
