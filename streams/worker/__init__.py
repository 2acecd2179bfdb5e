"""The stateful stream processor: a Faust app that folds the log into Redis and answers it."""
