"""May a trace stand for its program? Both are measured under several allocators, and compared.

`readings` holds what a row showed; `agreement` judges two of them, and knows nothing but numbers;
`shape` compares a trace with a second recording; `session` measures, and writes the verdict beside
the trace.
"""
