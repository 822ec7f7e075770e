"""Writes lua/redco/metrics/unicode_tables.lua: make_unicode_tables.py > FILE

What of Unicode the metrics need, from Python's own tables: lower case letters, which characters are
punctuation, symbols, numbers, marks and controls, and which ones decide about the lower case of a
sigma.
"""
import sys
import unicodedata

ALL_CODES = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
CODES = ALL_CODES[0x80:]


def ranges(is_chosen, codes):
    found = []
    for code in codes:
        if not is_chosen(chr(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def of_category(*starts):
    return ranges(lambda c: unicodedata.category(c).startswith(starts), CODES)


def ends_word(text):
    """Whether a capital sigma after the text is that of a word's end."""
    return (text + 'Σ').lower()[-1] == 'ς'


def lower_ranges():
    """Runs [first, last, step, delta]: every step-th character from first to last is the upper case
    of that delta after it."""
    found = []
    for code in CODES:
        lower = chr(code).lower()
        if lower == chr(code) or len(lower) > 1:
            continue
        delta = ord(lower) - code
        if found:
            first, last, step, known = found[-1]
            if known == delta and code - last in ((step,) if last > first else (1, 2)):
                found[-1] = [first, code, code - last, known]
                continue
        found.append([code, code, 1, delta])
    return found


def write(name, rows):
    print(f'  {name} = {{')
    line = '   '
    for row in rows:
        text = ' { ' + ', '.join(map(str, row)) + ' },'
        if len(line + text) > 100:
            print(line)
            line = '   '
        line += text
    print(line + '\n  },')


print(f'-- Unicode {unicodedata.unidata_version}, beyond ASCII. '
      'Written by tests/tools/make_unicode_tables.py: do not edit.')
print('return {\n  -- {first, last, step, from upper to lower case}')
write('lower', lower_ranges())
print('  -- {first, last} of the categories P, S, N, M, Cc and Cf')
for table, letter in ('punctuation', 'P'), ('symbols', 'S'), ('numbers', 'N'):
    write(table, of_category(letter))
write('marks', of_category('M'))
write('controls', of_category('Cc', 'Cf'))
print('  -- {first, last}: before a sigma, letters, and characters that are skipped; ASCII too')
write('cased', ranges(ends_word, ALL_CODES))
write('case_ignorable', ranges(lambda c: ends_word('a' + c) and not ends_word(c), ALL_CODES))
print('}')
