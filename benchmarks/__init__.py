"""Benchmark programs; README.md lists them."""
