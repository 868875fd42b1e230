"""For operators: change limits, set device policies, check that programs are limited."""
