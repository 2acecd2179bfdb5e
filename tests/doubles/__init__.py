"""In-memory implementations of the worker's broker and store; the conformance suites cover them."""
