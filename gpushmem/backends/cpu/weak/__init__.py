"""Memory as weak as a GPU's: operations are performed late, and in any order that is allowed."""
