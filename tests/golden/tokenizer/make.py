#!/usr/bin/env python3
"""Makes smollm2.json and qwen2.json: the token ids of texts.json, by an independent reference.

The reference is the Python package `tokenizers`, given the vocabulary and merges of a GGUF file and
the pre-tokeniser of the model's own tokenizer.json. No normaliser: GGUF carries none (Qwen's
tokenizer.json composes accents first; llama.cpp and we do not).

    pip install tokenizers gguf
    python make.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python make.py qwen2 qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
"""

import json
import pathlib
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE = {
    "smollm2": lambda: [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
    "qwen2": lambda: [
        pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def strings(reader, key):
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode("utf-8") for i in field.data]


def main(name, path):
    here = pathlib.Path(__file__).parent
    reader = gguf.GGUFReader(path)
    tokens = strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in strings(reader, "tokenizer.ggml.merges")]
    field = reader.fields["tokenizer.ggml.token_type"]
    types = [int(field.parts[i][0]) for i in field.data]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE[name]())
    tokenizer.decoder = decoders.ByteLevel()
    for i, (token, kind) in enumerate(zip(tokens, types)):
        if kind in (3, 4):
            tokenizer.add_tokens([AddedToken(token, special=kind == 3, normalized=False)])
            assert tokenizer.token_to_id(token) == i
    texts = json.loads((here / "texts.json").read_text("utf-8"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for text, row in zip(texts, ids):
        assert tokenizer.decode(row, skip_special_tokens=False) == text, text
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids)
    (here / f"{name}.json").write_text(f"[\n{rows}\n]\n")
    print(f"{name}: {sum(map(len, ids))} ids of {len(ids)} texts, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
