"""The client library for trainers and query answerers."""
