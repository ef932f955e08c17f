"""Engines: a server to measure, from its start to the proof that it is gone."""
