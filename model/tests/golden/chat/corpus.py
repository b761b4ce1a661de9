"""Texts that tokenizers get wrong: `TEXTS`, and `LONG`, pieces that are repeated so that the files stay small."""

import json
import random

from dialogues import TOOLS

# What the tiny tokenizers are trained on, so that merges reach across digits, spaces and the bytes of one character.
TRAINING = [
    "The user asks for the weather in Paris and the assistant calls the tool, then it answers the user.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius", "days": 12345}}',
    "In 2026 it is 21 degrees, in 1999 it was 100, and pi is 3.14159265, or 271828 for e.",
    "It's what we'll do, I'd say they've said; don't. IT'S WHAT WE'LL DO.",
    "東京の天気は晴れです。北京今天下雨。서울 날씨 맑음.",
    "naïve café Ångström e\u0301te\u0301 🌦️🌦️ 👩‍👩‍👧 🇫🇷🇫🇷 שלום עולם مرحبا بالعالم",
    "def f(x):\n    if x:\n        return x + 1\n\n\n    return 0\n\t\tend\r\n",
    "aaaa aaaaaaaa aaaaaaaaaaaaaaaa ---- ======== ........ !!!!",
    json.dumps(TOOLS),
    json.dumps(TOOLS, indent=4),
]


def around(token):
    """Text that holds a special token, or nearly."""
    half = len(token) // 2
    return [
        token,
        f"a{token}b",
        f" {token} ",
        f"{token}{token}",
        token[:-1],
        token[1:],
        token[:half],
        token[:half] + token + token[half:],
        token.upper(),
        token[:half] + "\u200b" + token[half:],
        token[:half] + " " + token[half:],
        f"\n{token}\n",
    ]


CONTRACTIONS = "it's IT'S we'll WE'LL I'd I'D they've you're I'm 's '' ' can't 'S'T'RE x'\u017f x\u2019s 'ſt"
TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "Hello, world!",
    "hello hello hello",
    " leading and trailing ",
    CONTRACTIONS,
    "1 12 123 1234 12345 123456789 3.14159 1,000,000 0x1F 1e-9 v2.0.1",
    "٣٤٥ ১২৩ Ⅷ ½ ² ①② ௧௨௩",
    "naïve café \u00e9 e\u0301 \u212b \u00c5 A\u030a ﬁ \ufb01 \u1e9b\u0323",
    "한글 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "東京の天気は晴れ。北京今天下雨！서울은 맑음",
    "𠜎𠜱 𮯰 \U0002ebf0 \U00031350",
    "👩‍👩‍👧‍👦 👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇫🇷🇩🇪🇫 ☁️ ☁ 1️⃣ \U0001fae8 🌦",
    "a\u0300\u0301\u0302\u0303\u0304 \u0301 a\u0323\u0307 a\u0307\u0323 \u0b47\u0b3e \u09cb ก\u0e33 z\u0338\u0489",
    "שָׁלוֹם עולם مَرْحَبًا \u202eabc\u202c \u2066x\u2069 \u200fא\u200e",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff soft\u00adhyphen",
    "\ufeffstarts with a mark",
    "\u00a0no\u00a0break\u2003em\u2009thin\u3000wide\u1680ogham\u202fnarrow\u205fmath\u180emvs\u0085nel\u2028ls\u2029ps",
    "a\u000bb\u000cc\u001cd\u001de\u001ef\u001fg\u0085h",
    "\u0000\u0001\u0007\b\u001b[31m\u007f\u0080\u009f",
    "\ufffd\ufffd x\ufffdy \ud7ff \ue000 \uf8ff \ufffe \uffff \U000f0000 \U0010fffd \U0010ffff",
    "tabs\tand\r\nlines\n\n\n  end  ",
    "a\nb\rc\r\nd\n\re\r\r\nf\n \n\r \r\n\t\n",
    "   \n   \n\n x   y    z     \n",
    "word\n\n\nword \n word\t\n",
    "if x:\n\t\treturn [a,b,,c];;;  // ---- ==== ####\n",
    '{"a": [1, 2.5, null, "\\u00e9\\n"], "b": {"c": "\\"<|x|>\\""}}',
    "https://example.org/a_b-c?d=%20&e=f#g user@example.org C:\\dir\\file",
    "<tool_call>\n{}\n</tool_call><tool_response></tool_response><think>x</think>",
    "<tool_call <tool_ call> </ tool_call> <<tool_call>> <TOOL_CALL>",
    "Ǆ ǅ ǆ ß ẞ ſ İ ı ΐ ŉ ﬀ Σσς",
    "ꙮ ฿ ₿ ∑∏∫ ≠ ½⅓ → ↯ ♞ ℵ \U0001d54f\U0001d7d8",
    "ไม่มีช่องว่างระหว่างคำ ខ្មែរ မြန်မာ हिन्दी தமிழ்",
]


def random_letters(n):
    draw = random.Random(7)
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))


# [text, repetitions]
LONG = [
    ["a", 10_000],
    [random_letters(2_500), 2],
    ["7", 3_000],
    ["314", 1_000],
    [" ", 3_000],
    ["\n", 2_000],
    ["\r\n \t", 500],
    ["é", 2_000],
    ["e\u0301", 2_000],
    ["京", 2_000],
    ["👩‍", 700],
    ["\u0301", 1_500],
    ["-", 4_000],
    ["'s", 1_500],
    ["ab ", 2_000],
    ["Aa", 2_000],
    ["<|im_end|", 400],
    ["x\u200d", 900],
]
