"""Estimates and intervals: pure functions of measurements, without I/O and without a clock."""
