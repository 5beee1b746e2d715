"""Allocators and configurations side by side: the contenders, measuring them, what it came to."""
