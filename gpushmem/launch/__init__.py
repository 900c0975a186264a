"""Starting PEs and seeing to it that they end together."""
