"""What there is on this machine, and what of it stands in the way of a job."""
