"""The start of a job: a launcher creates the PEs, a bootstrap is how they find each other."""
