"""The real Kafka, as a worker reaches it: its ports, and the transport of Faust."""
