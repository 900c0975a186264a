"""Backends, found by name and imported when first used."""
