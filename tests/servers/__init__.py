"""Servers for tests: shared ones, clusters of brokers, Redis Cluster and Sentinel."""
