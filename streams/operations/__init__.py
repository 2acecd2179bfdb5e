"""What those who run the service ask of it."""
