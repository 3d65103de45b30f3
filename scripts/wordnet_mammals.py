"""The mammals of WordNet 3.0 as one small file, from the nouns of Debian's `wordnet-base`.

    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    python scripts/wordnet_mammals.py wordnet/usr/share > examples/wordnet_mammals.txt

Prints the licence of WordNet, each line after "# ", then a line for each synset at or below "mammal", in the order of a
breadth-first search: its first word, a tab, and the numbers of the lines of its hypernyms among them, from 0.
"""

import sys
from pathlib import Path


def nouns(file: Path) -> dict[str, tuple[str, list[str]]]:
    """Offset of each synset: its first word, and the offsets of its hypernyms and of what it is an instance of."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" | ")[0].split()
        start = 4 + 2 * int(fields[3], 16)  # behind the words and their numbers: how many pointers, four fields each
        pointers = zip(fields[start + 1 :: 4], fields[start + 2 :: 4], strict=False)
        found[fields[0]] = fields[4], [offset for kind, offset in pointers if kind in ("@", "@i")]
    return found


def main(share: Path) -> None:
    licence = (share / "doc/wordnet-base/copyright").read_text(encoding="utf-8").split("License: WordNet3.0\n")[1]
    for line in licence.split("\n\n")[0].splitlines():
        print(f"# {line.strip().removeprefix('.')}".rstrip())
    synsets = nouns(share / "wordnet/data.noun")
    below: dict[str, list[str]] = {}
    for offset, (_, hypernyms) in synsets.items():
        for hypernym in hypernyms:
            below.setdefault(hypernym, []).append(offset)
    rows = {offset: 0 for offset, (word, _) in synsets.items() if word == "mammal"}
    queue = list(rows)
    for offset in queue:  # grows while it is read
        for hyponym in below.get(offset, []):
            if hyponym not in rows:
                rows[hyponym] = len(rows)
                queue.append(hyponym)
    for offset in queue:
        word, hypernyms = synsets[offset]
        print(f"{word}\t{','.join(str(rows[hypernym]) for hypernym in hypernyms if hypernym in rows)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
