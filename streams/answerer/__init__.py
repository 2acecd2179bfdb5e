"""Private answers to queries over a stream of events, as windows of time close."""
