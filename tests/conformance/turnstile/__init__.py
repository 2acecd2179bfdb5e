"""The service over Kafka and the service in memory are the same to a trainer or an answerer."""

PARTITIONS = 3
