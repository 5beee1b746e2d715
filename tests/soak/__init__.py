"""The long form of the tests: see README.md."""
