"""The stateful stream processor: a Faust app that applies the log to a state in Redis."""
