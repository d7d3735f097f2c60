"""Text of every kind a tokenizer must take."""

TEXTS = (
    "",
    " ",
    "   ",
    "\n",
    "Hello world",
    "  two  spaces   and\ttabs\n\nnewlines \n \n x",
    "naïve café Ünïcödé ß",
    "日本語のテキスト 漢字かな",
    "中文分词测试，标点。",  # noqa: RUF001
    "한국어 텍스트",
    "العربية נעברית हिन्दी ไทย",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 ❤️",
    "def f(x):\n    return x ** 2  # comment\n\n\tif a != b:\n",
    "I'm you're it's we'll THEY'D 'tis",
    "a<|endoftext|>b<|im_start|>user\nHi<|im_end|>\n",
    "almost <|im_start |> special <|im_",
    "e\u0301 combining",
    "x" * 200,
    "\u200b\u00a0\u3000",
    "URL https://a.b/c?d=e&f=g#h",
    "!!!??? ... --- === ***",
    "\x00\x01\x7f",
    "MixedCASE camelCase snake_case kebab-case",
    "\r\n windows \r\n",
    "1st 2nd 3.14159 1,000,000 100% 2026-11-29",
)
