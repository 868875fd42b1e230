"""Claims: what they ask for, what they get, and what the node still has."""
