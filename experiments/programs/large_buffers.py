"""Copies and cuts messages of 40 MiB: every buffer is above the largest that glibc keeps.

glibc maps blocks of more than 32 MiB one by one and unmaps them when they are freed, so that each
buffer is faulted in, page by page, again.
"""

import sys

MESSAGE = 40 << 20


def main() -> None:
    """Passes messages on; the argument says how many. Prints a sum of what was passed."""
    template = b"hztune" * (MESSAGE // 6)
    total = 0
    for number in range(int(sys.argv[1])):
        received = bytearray(template)
        received[number] = 0
        body = received[: len(received) - 4096 * (number % 5)]
        total += len(body) + body[number]
    print(total)


main()
