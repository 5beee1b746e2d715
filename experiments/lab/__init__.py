"""Experiments: a question as a file, its measurement kept with every sample, and a report."""
