"""Makes the files of examples/classification/data from Debian's package wordnet-base.

    dpkg-deb -x wordnet-base_*.deb wordnet
    python3 make_glosses.py wordnet/usr/share/wordnet .

A line of data.noun is a set of synonyms: its offset in the file, the number of the lexicographer's
file, words, pointers to other sets (@ to a more general one), and after a bar the definition.
"""
import json
import random
import sys
from pathlib import Path

source, target = Path(sys.argv[1]), Path(sys.argv[2])
names = {5: "animal", 6: "artifact", 8: "body", 9: "cognition", 10: "communication", 13: "food"}
names |= {14: "group", 15: "location", 18: "person", 20: "plant", 26: "state", 27: "substance"}
glosses, domains, parents = {}, {}, {}
for line in open(source / "data.noun", encoding="utf-8"):
    if line.startswith(" "):
        continue
    head, gloss = line.rstrip().split(" | ", 1)
    fields = head.split()
    count = int(fields[3], 16)
    pointers = fields[5 + 2 * count :]
    up = [pointers[i + 1] for i in range(0, len(pointers) - 3, 4) if pointers[i] in ("@", "@i")]
    glosses[fields[0]] = gloss.split('; "')[0].strip()
    domains[fields[0]] = names.get(int(fields[1]))
    if up:
        parents[fields[0]] = up[0]


def path(key):
    """From a set of synonyms up to the most general one."""
    found = [key]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def similarity(one, other):
    """Wu and Palmer's: the depth of what both have in common, by their mean depth."""
    above = path(one)
    common = next(key for key in path(other) if key in above)
    return 2 * len(path(common)) / (len(above) + len(path(other)))


random.seed(1)
keys = [key for key, domain in domains.items() if domain and 20 <= len(glosses[key]) <= 90]
random.shuffle(keys)
by_domain = {name: [key for key in keys if domains[key] == name] for name in names.values()}


def write(name, rows):
    random.shuffle(rows)
    with open(target / name, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


# 150 of each domain with a label.
labelled = {name: own[:150] for name, own in by_domain.items()}
write(
    "domains.jsonl",
    [{"text": glosses[key], "label": name} for name, own in labelled.items() for key in own],
)
with_domain = {key for own in labelled.values() for key in own}

# Pairs of a definition and that of the next general thing, or of another one's.
pairs, rest = [], [key for key in keys if key not in with_domain and key in parents]
general = [parents[key] for key in rest[:1600]]
others = general[1:] + general[:1]
for i, key in enumerate(rest[:1600]):
    other = general[i] if i % 2 else others[i]
    label = "yes" if other in path(key) else "no"
    pairs.append({"text": glosses[key], "text_pair": glosses[other], "label": label})
write("pairs.jsonl", pairs)
used = with_domain | set(rest[:1600])

# Pairs that are somewhat alike, with their likeness.
alike, rest = [], [key for key in keys if key not in used]
for i in range(1600):
    one = rest[i]
    same = by_domain[domains[one]]
    cousins = [key for key in same[150:] if parents[key] == parents[one]] if i % 3 else same[150:]
    other = random.choice([key for key in cousins if key != one] or same[150:])
    if i % 3 == 2:
        other = random.choice(rest)
    label = round(similarity(one, other), 3)
    alike.append({"text": glosses[one], "text_pair": glosses[other], "label": label})
write("similarity.jsonl", alike)

# Definitions to read, other than those with a domain; some sets have the same one.
known = {glosses[key] for key in with_domain}
texts, size = [], 0
for key in keys:
    if key not in with_domain and size < 1_100_000:
        texts.append(glosses[key])
        size += len(glosses[key]) + 1
lines = [text for text in texts if text not in known]
(target / "glosses.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
