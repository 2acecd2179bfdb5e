"""The Kafka topics: their settings, and clients that reach them."""
