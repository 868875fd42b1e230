"""What an operator does with slices: change limits, configure devices, check that programs are limited."""
