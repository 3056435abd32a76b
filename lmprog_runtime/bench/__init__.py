"""Benchmarks: serving, peers, and what they print, plot and write. Nothing else of the runtime imports this package."""
