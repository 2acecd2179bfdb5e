"""All that reaches Kafka by a client: topics, readers, producers, signatures, roles."""
