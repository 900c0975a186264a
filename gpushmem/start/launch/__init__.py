"""Starting PEs, monitoring them, and ending them together."""
