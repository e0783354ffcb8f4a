#!/usr/bin/env python3
"""Makes spm.json: a small SentencePiece vocabulary and the ids of texts.json, by the library itself.

The model is a BPE with byte fallback, trained on texts.json, with the settings of Llama 2 (identity
normalisation, a prefix space, no clean-up of white space).

    pip install sentencepiece
    python make_spm.py
"""

import io
import json
import pathlib

import sentencepiece as spm

here = pathlib.Path(__file__).parent
texts = json.loads((here / "texts.json").read_text("utf-8"))
# The library cannot encode NUL from Python, and trains on lines.
lines = [line for text in texts for line in text.replace("\0", "").splitlines() if line]
model = io.BytesIO()
spm.SentencePieceTrainer.train(
    sentence_iterator=iter(lines * 3),
    model_writer=model,
    model_type="bpe",
    vocab_size=700,
    byte_fallback=True,
    character_coverage=0.98,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    add_dummy_prefix=True,
    allow_whitespace_only_pieces=True,
    split_digits=True,
    minloglevel=2,
)
sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
kinds = [
    2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
    for i in range(sp.vocab_size())
]
kept = [i for i, text in enumerate(texts) if "\0" not in text]
out = {
    "tokens": [sp.id_to_piece(i) for i in range(sp.vocab_size())],
    "scores": [sp.get_score(i) for i in range(sp.vocab_size())],
    "types": kinds,
    "texts": kept,
    "ids": [sp.encode(texts[i]) for i in kept],
}
(here / "spm.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
print(f"{sp.vocab_size()} pieces, {sum(map(len, out['ids']))} ids of {len(kept)} texts, sentencepiece {spm.__version__}")
