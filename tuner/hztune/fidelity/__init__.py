"""May a trace stand for its program? Both are measured under several allocators, and compared.

`readings` holds what a row showed; `agreement` judges two of them, and knows nothing but numbers;
`second_recording` compares a trace with another one of the same program; `check` measures, and
writes the verdict beside the trace.
"""
