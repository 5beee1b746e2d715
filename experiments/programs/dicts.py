"""Counts words in dictionaries of lists, with every object from malloc (PYTHONMALLOC=malloc)."""

import random
import sys


def main() -> None:
    """Fills and thins out an index; the argument is its size in thousands. Prints its checksum."""
    dice = random.Random(7)
    index: dict[str, list[int]] = {}
    for place in range(1000 * int(sys.argv[1])):
        word = f"word-{dice.randrange(20_000)}"
        index.setdefault(word, []).append(place)
        if place % 5000 == 0:
            index = {key: places[-8:] for key, places in index.items() if len(places) > 1}
    print(sum(len(places) + places[-1] % 7 for places in index.values()))


main()
