"""Observing and maintaining a service: status, diagnosis, live view, trimming."""
