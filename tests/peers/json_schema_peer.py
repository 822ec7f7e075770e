"""Texts of the grammars of random JSON schemas are valid, and valid documents fit the grammars.

json_schema_peer.py REDCO_LUA SOURCE [SEED [COUNT]]
"""
import json
import pathlib
import random
import re
import string
import subprocess
import sys
import tempfile
from decimal import Decimal

import jsonschema

program, source, *rest = sys.argv[1:]
seed = int(rest[0]) if rest else 1
count = int(rest[1]) if len(rest) > 1 else 250
draw = random.Random(seed)
script = pathlib.Path(__file__).parent / "json_schema.lua"
Validator = jsonschema.Draft202012Validator

# Each function returns a schema and a function that makes documents, or None where it has none.
# Documents have the properties in the order of the schema. Numbers are Decimals or ints.


def chance(p):
    return draw.random() < p


def scalars():
    return draw.choice([None, True, False, 0, -3, 7, 12345, Decimal("2.5"), "a", "ab", "é", 'x"y',
                        "日本", "tab\t", ""])


def constant():
    value = scalars()
    if chance(0.2):
        value = [value, scalars()]
    elif chance(0.2):
        value = {"k": value, "l": scalars()}
    return {"const": value}, lambda: value


def enum():
    values = []
    for value in [scalars() for _ in range(draw.randint(1, 6))] + [[1, 2]] * chance(0.2):
        if value not in values:
            values.append(value)
    return {"enum": values}, lambda: draw.choice(values)


def integer():
    schema, low, high = {"type": "integer"}, None, None
    scale = draw.choice([3, 30, 1000, 10**9])
    if chance(0.7):
        low = draw.randint(-scale, scale)
        schema[key := draw.choice(["minimum", "exclusiveMinimum"])] = low
        low += key != "minimum"
    if chance(0.7):
        high = (low if low is not None else -scale) + draw.choice([0, 1, 9, 57, 12345])
        schema[key := draw.choice(["maximum", "exclusiveMaximum"])] = high
        high -= key != "maximum"
    unit = draw.choice([1, 1, 1, 2, 3, 7, 10, 25, 100, 128])
    if unit > 1:
        schema["multipleOf"] = unit
    low = low if low is not None else (high or 0) - draw.choice([5, 10**6])
    high = high if high is not None else low + 10**6
    first = -(-low // unit)
    if first * unit > high:
        return schema, None
    return schema, lambda: unit * draw.randint(first, high // unit)


def number():
    schema = {"type": "number"}
    low = Decimal(draw.randint(-2000, 2000)) / draw.choice([1, 10, 100, 1000])
    high = low + Decimal(draw.randint(1, 5000)) / draw.choice([1, 100, 1000])
    schema[draw.choice(["minimum", "exclusiveMinimum"])] = low
    schema[draw.choice(["maximum", "exclusiveMaximum"])] = high
    if chance(0.3):
        unit = draw.choice([Decimal("0.5"), Decimal("0.01"), Decimal("0.25"), Decimal("0.3")])
        schema["multipleOf"] = unit
        return schema, None
    return schema, lambda: low + (high - low) * draw.randint(1, 99) / 100


LETTERS = "abcxyz059_-. é日😀"


def expression(depth=0):
    """A regular expression and a function that makes texts that match it."""
    kind = draw.randrange(8 if depth < 3 else 4)
    if kind == 0:
        c = draw.choice(LETTERS)
        return re.escape(c) if c in ".-" else c, lambda: c
    if kind == 1:
        return draw.choice([("[a-f]", lambda: draw.choice("abcdef")),
                            ("[^a-z]", lambda: draw.choice("ABZ09é日")),
                            ("[\\d_]", lambda: draw.choice("0123456789_")),
                            ("[é-日]", lambda: draw.choice("é日Ω"))])
    if kind == 2:
        return draw.choice([("\\d", lambda: draw.choice("0123456789")),
                            ("\\w", lambda: draw.choice("azAZ09_")),
                            ("\\s", lambda: draw.choice(" \t\n")),
                            (".", lambda: draw.choice("a. é日"))])
    if kind == 3:
        word = "".join(draw.choices(string.ascii_letters, k=draw.randint(1, 4)))
        return word, lambda: word
    parts = [expression(depth + 1) for _ in range(draw.randint(1, 3))]
    if kind == 4:
        return ("(?:" + "|".join(p for p, _ in parts) + ")", lambda: draw.choice(parts)[1]())
    if kind in (5, 6):
        inner, make = parts[0]
        mark, least, most = draw.choice([("*", 0, 3), ("+", 1, 4), ("?", 0, 1), ("{2}", 2, 2),
                                         ("{1,3}", 1, 3), ("{2,}", 2, 4), ("*?", 0, 2)])
        return (f"(?:{inner}){mark}",
                lambda: "".join(make() for _ in range(draw.randint(least, most))))
    return "".join(p for p, _ in parts), lambda: "".join(make() for _, make in parts)


FORMATS = {
    "date": ["2024-02-29", "1999-12-31", "0001-01-01"], "time": ["23:59:59Z", "00:00:00.5+01:00"],
    "date-time": ["2024-02-29T12:00:00Z"], "email": ["a.b+c@example.org"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "ipv4": ["255.0.10.1"],
    "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff:1.2.3.4", "1::"],
    "uri": ["https://a.org:80/b?c=d#e", "urn:x:y", "mailto:a@b.c", "http://[::1]/"],
    "hostname": ["a.example"], "duration": ["P1Y2M3DT4H5M6S", "PT1H", "P2W"],
    "json-pointer": ["", "/a~1b/0"], "uri-reference": ["../a?b", "//h/p", "", "#x"],
}


def text():
    schema = {"type": "string"}
    kind = draw.randrange(4)
    if kind == 0:
        low = draw.randint(0, 4)
        if chance(0.7):
            schema["minLength"] = low
        schema["maxLength"] = low + draw.randint(0, 4)
        return schema, lambda: "".join(
            draw.choices(LETTERS + '"\\\n', k=draw.randint(low, schema["maxLength"])))
    if kind == 1:
        name = draw.choice(list(FORMATS))
        return {**schema, "format": name}, lambda: draw.choice(FORMATS[name])
    inner, make = expression()
    form = draw.randrange(5)
    if form == 0:
        schema["pattern"], whole = inner, lambda: draw.choice(LETTERS) + make() + "!"
    elif form == 1:
        schema["pattern"], whole = "^" + inner, lambda: make() + "?"
    elif form == 2:
        schema["pattern"], whole = inner + "$", lambda: "#" + make()
    else:
        schema["pattern"], whole = f"^{inner}$", make
    if chance(0.3):
        if form == 3:
            schema["pattern"] = "^(?=.*[a-y])(?!.*z)" + schema["pattern"][1:]
        schema["maxLength"] = draw.randint(3, 20)
    return schema, lambda: next(
        (t for t in (whole() for _ in range(20)) if Validator(schema).is_valid(t)), Skip)


class Skip:
    """In the place of a document that could not be made."""


def array(depth):
    schema = {"type": "array"}
    first = [value(depth + 1) for _ in range(draw.choice([0, 0, 1, 3]))]
    further = value(depth + 1)
    if first:
        schema["prefixItems"] = [each for each, _ in first]
    schema["items"] = further[0] if chance(0.8) else False
    low = draw.randint(0, 3)
    high = low + draw.randint(0, 3)
    schema["minItems"], schema["maxItems"] = low, high
    makers = [make for _, make in first]
    if schema["items"] is False:
        high = min(high, len(makers))
    else:
        makers += [further[1]] * (high - len(makers))
    usable = next((i for i, make in enumerate(makers) if make is None), len(makers))
    high = min(high, usable)
    if high < low:
        return schema, None
    return schema, lambda: [make() for make in makers[:draw.randint(low, high)]]


def record(depth):
    names = draw.sample(["a", "b", "name", "é", 'q"', "x-1", "x-2"], draw.randint(0, 4))
    members = {name: value(depth + 1) for name in names}
    schema = {"type": "object", "properties": {name: each for name, (each, _) in members.items()}}
    needed = [name for name in names if chance(0.5)]
    if needed:
        schema["required"] = draw.sample(needed, len(needed))
    further = []
    if chance(0.5):
        kind = draw.choice(["any", "typed", "pattern", "closed", "names"])
        if kind == "any":
            schema["additionalProperties"] = True
            further.append((lambda: "n" + draw.choice(LETTERS), lambda: draw.choice([1, "s"])))
        elif kind == "typed":
            schema["additionalProperties"], make = value(depth + 1)
            further.append((lambda: "n" + draw.choice("abc"), make))
        elif kind == "pattern":
            own, make = value(depth + 1)
            schema["patternProperties"] = {"^x-": own}
            further.append((lambda: "x-" + draw.choice("789"), make))
            for name in names:
                if name.startswith("x-"):
                    members[name] = (None, None)  # two schemas
        elif kind == "names":
            del schema["properties"]
            schema.pop("required", None)
            members, needed = {}, []
            schema["propertyNames"] = {"pattern": "^[a-c]+$", "maxLength": 2}
            schema["additionalProperties"], make = value(depth + 1)
            further.append((lambda: draw.choice(["a", "bc", "cc"]), make))
        else:
            schema["additionalProperties"] = False
    least, most = len(needed), 100
    if chance(0.3):
        most = schema["maxProperties"] = len(needed) + draw.randint(0, 2)
    if chance(0.3) and (members or further) and len(needed) < most:
        least = schema["minProperties"] = len(needed) + 1
    if any(members[name][1] is None for name in needed):
        return schema, None

    def make():
        found = {}
        for name, (_, own) in members.items():
            if own and (name in needed or chance(0.4)):
                found[name] = own()
        for name, own in further:
            if own and chance(0.5):
                found[name()] = own()
        return found if least <= len(found) <= most else Skip

    return schema, make


def any_of(depth):
    options = [value(depth + 1) for _ in range(draw.randint(1, 3))]
    makers = [make for _, make in options if make]
    return ({"anyOf": [each for each, _ in options]},
            (lambda: draw.choice(makers)()) if makers else None)


def one_of(depth):
    kinds = draw.sample(["cat", "dog", "cow"], draw.randint(1, 3))
    options, makers = [], []
    for kind in kinds:
        own, make = value(depth + 1)
        options.append({"type": "object", "required": ["kind", kind],
                        "properties": {"kind": {"const": kind}, kind: own}})
        if make:
            makers.append(lambda kind=kind, make=make: {"kind": kind, kind: make()})
    for own, make in [({"type": "integer", "minimum": 3}, lambda: 4),
                      ({"type": "integer", "maximum": 2}, lambda: -1),
                      ({"type": "string", "pattern": "^a"}, lambda: "ab"),
                      ({"const": "b"}, lambda: "b")]:
        if chance(0.3):
            options.append(own)
            makers.append(make)
    return {"oneOf": options}, (lambda: draw.choice(makers)()) if makers else None


def all_of(depth):
    own, make = value(depth + 1)
    items = list(own.items())
    draw.shuffle(items)
    at = draw.randint(0, len(items))
    if any(key in ("properties", "patternProperties", "additionalProperties", "prefixItems", "items")
           for key, _ in items):
        return {"allOf": [own, {"type": ["object", "array", "string"]}]}, None
    return {"allOf": [dict(items[:at]), {"allOf": [dict(items[at:])]}]}, make


DEFINITIONS = {
    "tree": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
             "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
             "required": ["v"], "additionalProperties": False},
    "a/b~c d": {"enum": [1, "x"]},
}


def tree(depth=0):
    found = {"v": draw.randint(0, 9)}
    if depth < 2 and chance(0.6):
        found["kids"] = [tree(depth + 1) for _ in range(draw.randint(0, 2))]
    return found


def reference():
    if chance(0.5):
        return {"$ref": "#/$defs/tree"}, tree
    return {"$ref": "#/$defs/a~1b~0c%20d"}, lambda: draw.choice([1, "x"])


def value(depth=0):
    leaves = [constant, enum, integer, integer, number, text, text, reference,
              lambda: ({"type": "boolean"}, lambda: chance(0.5)),
              lambda: ({"type": ["null", "integer"], "maximum": 5}, lambda: draw.choice([None, 5]))]
    if depth >= 3 or chance(0.4):
        return draw.choice(leaves)()
    return draw.choice([array, record, record, any_of, one_of, all_of])(depth)


def has_skip(document):
    if isinstance(document, dict):
        return any(map(has_skip, document.values()))
    return any(map(has_skip, document)) if isinstance(document, list) else document is Skip


def written(document):
    """The JSON text of a document, with all digits of a Decimal, and as people write it."""
    if isinstance(document, Decimal):
        return f"{document.normalize():f}"
    comma, colon = draw.choice([", ", ",", ",\n  "]), draw.choice([": ", ":"])
    if isinstance(document, dict):
        return "{" + comma.join(written(name) + colon + written(each)
                                for name, each in document.items()) + "}"
    if isinstance(document, list):
        return "[" + comma.join(map(written, document)) + "]"
    return json.dumps(document, ensure_ascii=False)


cases = []
while len(cases) < count:
    schema, make = value()
    schema["$defs"] = DEFINITIONS
    documents = [make() for _ in range(6)] if make else []
    documents = [each for each in documents if not has_skip(each)]
    cases.append((schema, documents))

with tempfile.TemporaryDirectory() as folder:
    given, found = pathlib.Path(folder, "cases.jsonl"), pathlib.Path(folder, "found.jsonl")
    with open(given, "w") as file:
        for schema, documents in cases:
            row = {"schema": written(schema), "documents": list(map(written, documents))}
            file.write(json.dumps(row) + "\n")
    subprocess.run([program, script, source, given, found, str(seed)], check=True)
    rows = [json.loads(line) for line in open(found)]

n_accepted = n_invalid = n_texts = n_wrong = n_none = 0
formats = Validator.FORMAT_CHECKER
for (schema, documents), row in zip(cases, rows, strict=True):
    source = written(schema)
    validator = Validator(json.loads(source, parse_float=Decimal), format_checker=formats)
    documents = [json.loads(written(each), parse_float=Decimal) for each in documents]
    n_invalid += len(documents) - sum(map(validator.is_valid, documents))
    if "error" in row:
        n_none += 1
        if any(map(validator.is_valid, documents)) or "no finite text" not in row["error"]:
            print(f"{source}\n  {row['error']}")
            n_wrong += 1
        continue
    for document, is_accepted in zip(documents, row["is_accepted"], strict=True):
        n_accepted += is_accepted
        if is_accepted != validator.is_valid(document):
            print(f"{source}\n  {'accepts' if is_accepted else 'refuses'} {document!r}")
            n_wrong += 1
    for sample in row["texts"]:
        n_texts += 1
        error = next(validator.iter_errors(json.loads(sample, parse_float=Decimal)), None)
        if error:
            print(f"{source}\n  writes {sample}\n  {error.message}")
            n_wrong += 1
print(f"{len(cases)} schemas, {n_none} that nothing fits, {n_accepted} documents accepted, "
      f"{n_invalid} refused, "
      f"{n_texts} texts written, {n_wrong} wrong")
sys.exit(n_wrong > 0 or n_texts < 2 * count or n_accepted < count)
