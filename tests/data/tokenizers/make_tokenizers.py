"""Makes the small tokenizers of this folder and what their libraries say of difficult text.

usage: pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 jinja2==3.1.6; python make_tokenizers.py
Each file X.json, X.model or X.tiktoken gets a line a text in X.expected.jsonl: {"text", "ids", "special", "dec", "decoded"};
`special` is with the tokens around a text, `decoded` is the text of the ids `dec`, special tokens written out.
chat.json has templates with variables and what Jinja makes of them.
"""
import base64
import io
import json
import os
import random

import jinja2
import sentencepiece as spm
import tiktoken
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders as D, models as M, normalizers as N, pre_tokenizers as P
from tokenizers import processors as PP, trainers as T

HERE = os.path.dirname(os.path.abspath(__file__))
R = random.Random(5)

BASE = ["", " ", "  ", "\n", " \n\n ", "\t\tx", "Hello, world!", " leading", "trailing ", "don't you'll I'VE we'D ſ 'ſ it'S", "3.14159 1234567890 ½ ² ③ Ⅳ ٣٤٥",
        "a\r\nb\rc", "a\n  ", "x  \n", "naïve café e\u0301 Ångström Å", "Straße İstanbul ıI ΑΣ ς", "日本語のテキスト。カタカナ", "中文分词测试，你好！",
        "한국어 문장 각 \u1100\u1161\u11a8", "Привет", "مرحبا", "नमस्ते क्षि", "สวัสดี", "👩‍👩‍👧‍👦 🇫🇷 🏳️‍🌈", "\u200b\u200d\ufeff",
        "<|endoftext|> <s></s>[CLS] [SEP]<pad>  <mask> x<mask>y", "aaaa" * 20, "\x00\x01\x7f\x85\xad", "x\u0338 \u0301", "ﬁ ﬂ Ⅷ ㎏ ｶﾞ ＡＢＣ", "▁a▁▁b ▁",
        "_a_b", "##a ##", "http://a.b/c?d=e", "\u2028\u2029\u00a0\u3000\u180e", "don ' t . , n't do not 's", "camelCaseHTTPServer ABCdef ǅABC 中A中B",
        "a/b//c\r\n/", "  1 2  33 4444 55555", "'s's'T'LL'Re", "\ufffd\ufffe", "\u0f71\u0f72\u0fb2\u0f80 \u0344 \u2126", "i\u0307 I\u0307"]
RANGES = [(0x20, 0x7e)] * 8 + [(0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x5f4), (0x600, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f),
          (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x2bff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff),
          (0xfb00, 0xfdff), (0xff00, 0xffef), (0x10000, 0x1007f), (0x1d400, 0x1d7ff), (0x1f300, 0x1f6ff), (0x0, 0x1f), (0x20000, 0x2a6df)]
WORDS = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were her all she there would "
         "their we him been has when who will more no if out so said what up its about into than them can only other new some could time these two may then do "
         "first any my now such like our over man me even most made after also did many before must through back years where much your way well down should "
         "because each just those people how too little state good very make world still own see men work long get here between both life being under never day "
         "same another know while last might us great old year off come since against go came right used take three training tokens parallel pipeline").split()


def noise():
    parts = []
    for _ in range(R.randint(1, 12)):
        a, b = R.choice(RANGES)
        parts.append("".join(chr(R.randint(a, b)) for _ in range(R.randint(1, 6))))
        if R.random() < .5:
            parts.append(R.choice([" ", "  ", "\n", "\t", "\u00a0", "'s", "1", ", ", "\r\n", "\u0301", "<s>", " <mask> ", "</s>", "▁"]))
    return "".join(parts)


TEXTS = BASE + [noise() for _ in range(60)] + [" ".join(R.choices(WORDS, k=12)) + "." for _ in range(5)]
CORPUS = [" ".join(R.choices(WORDS, k=60)) for _ in range(300)] + TEXTS[:60]


def write(name, encode, special, decode, size):
    with open(f"{HERE}/{name}.expected.jsonl", "w") as file:
        for text in TEXTS:
            dec = [R.randrange(size) for _ in range(R.randint(0, 10))]
            file.write(json.dumps({"text": text, "ids": encode(text), "special": special(text), "dec": dec, "decoded": decode(dec)}) + "\n")


def save(name, tk):
    with open(f"{HERE}/{name}.json", "w") as file:
        json.dump(json.loads(tk.to_str()), file, ensure_ascii=False, indent=0)
    write(name, lambda t: tk.encode(t, add_special_tokens=False).ids, lambda t: tk.encode(t).ids,
          lambda d: tk.decode(d, skip_special_tokens=False), max(tk.get_vocab().values()) + 1)


L3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O2 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
      r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
PLAIN = P.ByteLevel(add_prefix_space=False, use_regex=False)
BYTES = ["<0x%02X>" % b for b in range(256)]


def split(pattern, behavior="isolated", invert=False):
    return P.Split(Regex(pattern), behavior, invert)


def byte_level(name, pre, normalizer=None, post=None, ignore=False, added=()):
    tk = Tokenizer(M.BPE(ignore_merges=ignore))
    tk.pre_tokenizer, tk.decoder = pre, D.ByteLevel()
    if normalizer:
        tk.normalizer = normalizer
    tk.train_from_iterator(CORPUS, T.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>", "<s>"], initial_alphabet=P.ByteLevel.alphabet(), show_progress=False))
    if post:
        tk.post_processor = post
    tk.add_tokens(list(added))
    save(name, tk)


def word_piece(name, normalizer, pre, cleanup=True):
    tk = Tokenizer(M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tk.normalizer, tk.pre_tokenizer, tk.decoder = normalizer, pre, D.WordPiece(cleanup=cleanup)
    tk.train_from_iterator(CORPUS, T.WordPieceTrainer(vocab_size=600, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=200))
    tk.post_processor = PP.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tk.add_tokens([AddedToken("YeSterday", normalized=True)])
    save(name, tk)


def unigram(name, normalizer, pre, decoder, byte_fallback=False):
    tk = Tokenizer(M.Unigram())
    tk.normalizer, tk.pre_tokenizer = normalizer, pre
    tk.train_from_iterator(CORPUS[:320], T.UnigramTrainer(vocab_size=700, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"] + (BYTES if byte_fallback else []), show_progress=False))
    j = json.loads(tk.to_str())
    j["model"]["byte_fallback"] = byte_fallback
    tk = Tokenizer.from_str(json.dumps(j))
    tk.decoder = D.Sequence([D.ByteFallback(), decoder]) if byte_fallback else decoder
    tk.post_processor = PP.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    save(name, tk)


def bpe_words(name, pre, decoder, normalizer=None, train_pre=None, byte_fallback=False, **options):
    tk = Tokenizer(M.BPE(unk_token="<unk>", **options))
    tk.pre_tokenizer = train_pre or pre
    if normalizer and not train_pre:
        tk.normalizer = normalizer
    tk.train_from_iterator(CORPUS, T.BpeTrainer(vocab_size=600, limit_alphabet=150, special_tokens=["<unk>", "<s>", "</s>"] + (BYTES if byte_fallback else []), show_progress=False,
                                                **{k: v for k, v in options.items() if k.endswith("fix")}))
    j = json.loads(tk.to_str())
    j["model"].update(byte_fallback=byte_fallback, unk_token="<unk>", fuse_unk=options.get("fuse_unk", False), ignore_merges=options.get("ignore_merges", False))
    j["pre_tokenizer"] = json.loads(pre.__getstate__()) if pre else None
    tk = Tokenizer.from_str(json.dumps(j))
    if normalizer:
        tk.normalizer = normalizer
    tk.decoder = decoder
    if byte_fallback:
        tk.post_processor = PP.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save(name, tk)


def hugging_face():
    byte_level("gpt2", P.ByteLevel(add_prefix_space=False))
    byte_level("roberta", P.ByteLevel(add_prefix_space=True), post=PP.RobertaProcessing(("</s>", 1), ("<s>", 0)), added=[
        AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("single", single_word=True), AddedToken("wor", rstrip=True, normalized=True)])
    byte_level("llama3", P.Sequence([split(L3), PLAIN]), ignore=True, post=PP.Sequence([PP.ByteLevel(), PP.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])]))
    byte_level("qwen2", P.Sequence([split(L3.replace("{1,3}", "")), PLAIN]), N.NFC())
    byte_level("gpt4o", P.Sequence([split(O2, "removed", True), PLAIN]))
    byte_level("deepseek", P.Sequence([split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK), PLAIN]))
    byte_level("starcoder", P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]))
    byte_level("classes", P.Sequence([split(r"[^\S\n]+|\S\W*|[\p{L}&&[^a-m]]+"), PLAIN]))
    word_piece("bert", N.BertNormalizer(), P.BertPreTokenizer())
    word_piece("bert_cased", N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), cleanup=False)
    word_piece("word_nfkc", N.Sequence([N.NFKC(), N.Lowercase(), N.StripAccents()]), P.Whitespace())
    word_piece("word_nfd", N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents(), N.Strip()]), P.Sequence([P.Whitespace(), P.Digits(True), P.Punctuation("merged_with_previous")]))
    unigram("unigram_nmt", N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(), D.Metaspace())
    unigram("unigram_bytes", N.NFKC(), P.Metaspace(prepend_scheme="first", split=False), D.Metaspace(prepend_scheme="first", split=False), byte_fallback=True)
    llama = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    bpe_words("llama2", None, llama, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), train_pre=P.Metaspace(), byte_fallback=True, fuse_unk=True)
    bpe_words("mistral", P.Metaspace(prepend_scheme="first", split=False), llama, train_pre=P.Metaspace(), byte_fallback=True, fuse_unk=True, ignore_merges=True)
    bpe_words("bpe_prefix", P.WhitespaceSplit(), D.WordPiece(), continuing_subword_prefix="##")
    bpe_words("bpe_suffix", P.WhitespaceSplit(), D.BPEDecoder(), N.Lowercase(), end_of_word_suffix="</w>")


def sentencepiece():
    lines = [line.replace("\n", " ").replace("\r", " ") for line in CORPUS if "\0" not in line]
    for name, options in {
            "spm_unigram": dict(model_type="unigram", bos_id=-1, pad_id=0, eos_id=1, unk_id=2),
            "spm_bpe": dict(model_type="bpe", user_defined_symbols=["<sep>", "ing", "\u2581the"], control_symbols=["<ctl>"]),
            "spm_bpe_bytes": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
            "spm_suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="identity", user_defined_symbols=["ing", " a"]),
            "spm_word": dict(model_type="word", normalization_rule_name="identity"), "spm_char": dict(model_type="char", normalization_rule_name="identity")}.items():
        model = io.BytesIO()
        spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=600, character_coverage=0.985, hard_vocab_limit=False, minloglevel=2, **options)
        with open(f"{HERE}/{name}.model", "wb") as file:
            file.write(model.getvalue())
        s = spm.SentencePieceProcessor(model_proto=model.getvalue())
        bos, eos = s.bos_id(), s.eos_id()
        write(name, s.encode, lambda t: [bos] + s.encode(t) if bos >= 0 else s.encode(t) + [eos], s.decode, s.get_piece_size())
        if name == "spm_unigram":
            t5(s, model.getvalue())


def t5(s, data):
    """The same vocabulary as tokenizer.json, with the model's own charsmap."""
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    model.ParseFromString(data)
    tk = Tokenizer(M.Unigram([(p.piece, p.score) for p in model.pieces], s.unk_id(), False))
    tk.normalizer = N.Sequence([N.Precompiled(model.normalizer_spec.precompiled_charsmap), N.Strip(left=False, right=True), N.Replace(Regex(" {2,}"), "▁")])
    tk.pre_tokenizer, tk.decoder = P.Metaspace(), D.Metaspace()
    tk.add_special_tokens(["</s>", "<pad>"])
    tk.post_processor = PP.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    save("t5", tk)


def ranks():
    cl100k = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    tk = json.load(open(f"{HERE}/gpt2.json"))
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in visible)}
    tokens = [t for t in sorted(tk["model"]["vocab"], key=tk["model"]["vocab"].get) if t not in ("<|endoftext|>", "<s>")]
    table = {bytes(byte_of[c] for c in t): i for i, t in enumerate(tokens)}
    for name, pattern in (("cl100k_small", cl100k), ("o200k_small", O2)):
        with open(f"{HERE}/{name}.tiktoken", "wb") as file:
            file.writelines(base64.b64encode(t) + b" %d\n" % r for t, r in table.items())
        e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=table, special_tokens={"<|endoftext|>": len(table)})
        write(name, e.encode_ordinary, e.encode_ordinary, e.decode, len(table) + 1)


def chat():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def fail(message):
        raise jinja2.exceptions.TemplateError(message)

    env.globals["raise_exception"] = fail
    cases = json.load(open(f"{HERE}/chat_templates.json"))
    out = []
    for name, template in cases["templates"].items():
        for variables in cases["variables"]:
            entry = {"name": name, "template": template, "variables": variables}
            try:
                entry["expected"] = env.from_string(template).render(**variables)
            except (jinja2.exceptions.TemplateError, TypeError):
                entry["expected"] = None
            out.append(entry)
    with open(f"{HERE}/chat.json", "w") as file:
        json.dump(out, file, indent=0)


hugging_face()
sentencepiece()
ranks()
chat()
