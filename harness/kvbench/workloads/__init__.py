"""Workloads: what is sent, planned before a server exists."""
