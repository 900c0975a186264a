"""Environment checks: what this machine has, and problems that would stop a job."""
