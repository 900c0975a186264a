"""How the PEs of a job find each other."""
