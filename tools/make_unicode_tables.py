"""Writes pentatron/data/tokenizer/unicode_tables.inc.

usage: pip install unicodedata2==16.0.0; python3 tools/make_unicode_tables.py pentatron/data/tokenizer/unicode_tables.inc

unicodedata2 is Python's unicodedata for one version of Unicode. Perl knows since which version a code point is assigned.
Hugging Face's library works with several versions: categories of patterns are those of Unicode 16, normalization forms
those of 9, and punctuation, control characters and accents those of 8.
"""
import subprocess
import sys
import unicodedata2 as u

CATEGORIES = ("Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs").split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic


def runs(value):
    """(first code point, value) wherever the value changes."""
    out, before = [], None
    for c in range(0x110000):
        v = value(c)
        if v != before:
            out.append((c, v))
        before = v
    return out


def ages():
    """Of each code point: 0 assigned in Unicode 8, 1 in 9, 2 in 14, 3 later or never."""
    program = (r'for $c (0..0x10ffff) { $s = chr($c); print $c >= 0xd800 && $c < 0xe000 ? 0 : $s =~ /\p{Present_In: 8.0}/ ? 0'
               r' : $s =~ /\p{Present_In: 9.0}/ ? 1 : $s =~ /\p{Present_In: 14.0}/ ? 2 : 3 }')
    return [int(a) for a in subprocess.run(["perl", "-e", program], capture_output=True, text=True, check=True).stdout]


def lower(c):
    """Lower case; unicodedata has none, and Python's own is older. The rest is Garay, Latin additions and Beria Erfe."""
    new = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, 0xA7DA: 0xA7DB,
           0xA7DC: 0x19B}
    if c in new:
        return chr(new[c])
    if 0x10D50 <= c <= 0x10D65:
        return chr(c + 0x20)
    if 0x16EA0 <= c <= 0x16EB8:
        return chr(c + 0x1B)
    return chr(c).lower()


def array(out, kind, name, comment, numbers):
    out.append(f"// {comment}")
    out.append(f"constexpr {kind} {name}[] = {{")
    line = ""
    for n in numbers:
        text = f"{n:#x}," if n > 9 else f"{n},"
        if len(line) + len(text) > 118:
            out.append(line)
            line = ""
        line += text
    out += [line, "};", ""]


def main(path):
    out = [f"// Unicode {u.unidata_version}, made by tools/make_unicode_tables.py. Do not edit.", ""]
    array(out, "uint32_t", "kCategoryRuns", "code point << 8 | category, where the category changes",
          [c << 8 | CATEGORIES.index(v) for c, v in runs(lambda c: "Cs" if 0xD800 <= c < 0xE000 else u.category(chr(c)))])
    age = ages()
    array(out, "uint32_t", "kCombiningClasses", "code point << 8 | canonical combining class, where that is not 0, of Unicode 9",
          [c << 8 | u.combining(chr(c)) for c in CODE_POINTS if u.combining(chr(c)) and age[c] < 2])
    array(out, "uint32_t", "kAgeRuns", "code point << 8 | age, where the age changes: 0 assigned in Unicode 8, 1 in 9, 2 in 14, "
          "3 later or never", [c << 8 | v for c, v in runs(lambda c: age[c])])
    lowercase = []
    for c in CODE_POINTS:
        low = lower(c)
        if low != chr(c):
            lowercase += [c, ord(low[0]) if len(low) == 1 else 0]
            assert len(low) == 1 or c == 0x130
    array(out, "uint32_t", "kLowercase", "code point, its lower case; 0 for U+0130, whose lower case is two", lowercase)
    decompositions = []
    for c in CODE_POINTS:
        text = u.decomposition(chr(c))
        if not text or c in HANGUL or age[c] >= 2:
            continue
        parts = text.split()
        compatibility = parts[0].startswith("<")
        parts = [int(p, 16) for p in parts[compatibility:]]
        composes = (not compatibility and len(parts) == 2
                    and u.normalize("NFC", "".join(map(chr, parts))) == chr(c))
        decompositions += [c, len(parts) << 2 | composes << 1 | compatibility, *parts]
    array(out, "uint32_t", "kDecompositions",
          "code point, length << 2 | composes again << 1 | compatibility only, one step of decomposition; "
          "of Unicode 9", decompositions)
    with open(path, "w") as file:
        file.write("\n".join(out))


main(sys.argv[1])
