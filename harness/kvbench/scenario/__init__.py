"""Scenarios: strict models of what a YAML file may say."""
