"""Programs that the tests run in the stacks' environments."""
