"""The Kafka implementations of a worker's ports, and the Faust transport."""
