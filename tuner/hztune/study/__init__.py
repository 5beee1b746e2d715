"""A study: what it measures and knows, how it searches, proves and looks at other programs."""
