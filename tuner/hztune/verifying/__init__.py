"""Is it so? A profile's claim measured again, and a running process held against a profile."""
