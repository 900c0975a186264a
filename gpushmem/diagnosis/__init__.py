"""What the PEs of a job do, and wait for: records, accounts, proof of deadlocks, reports."""
