"""What is in a record, beyond its fields: packed arrays, homes of users, the log's digest."""
