"""Allocators and configurations side by side: who takes part, measuring them, what it came to."""
