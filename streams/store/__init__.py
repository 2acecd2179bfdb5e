"""Where the state of a partition is kept, and how it proves that nothing is missing."""
