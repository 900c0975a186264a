"""Launches: on streams, spread over cores, with threads that wait."""
