"""Makes the golden logits of tests/golden_logits.rs with the Python package `transformers`.

The models are those of models/src/tiny.rs: the same weights from the same formula, made here without
reading a GGUF file, so that reader, tensor layout and arithmetic are all checked against a program
that shares nothing with ours. Run once, and again only when the formula or a case changes:

    python3 -m venv v && v/bin/pip install torch transformers numpy
    v/bin/python tests/golden/make_tiny.py

Writes tiny.json (the cases) and one file of little-endian f32 [positions, vocab] for each, beside
this script.
"""

import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
LAYERS, D, HEADS, KV_HEADS, FF, VOCAB, CONTEXT = 2, 64, 4, 2, 128, 384, 1024
HEAD = D // HEADS
POSITIONS = 64
EPS = 1e-5

# Original length 32: wavelengths from 8 to 32 and beyond are rescaled, so 64 positions show it.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CASES = [
    {"name": "llama", "family": "llama", "tied": False, "rope_base": 10000.0, "seed": 11},
    {"name": "llama3", "family": "llama", "tied": True, "rope_base": 10000.0, "seed": 12, "scaling": LLAMA3},
    {"name": "qwen2", "family": "qwen2", "tied": False, "rope_base": 1000000.0, "seed": 13},
    # The window of the first layer is a quarter of the positions, and its base is 10,000.
    {"name": "gemma3", "family": "gemma3", "tied": False, "rope_base": 1000000.0, "seed": 15, "window": [16, 2]},
    {"name": "qwen2-tied", "family": "qwen2", "tied": True, "rope_base": 1000000.0, "seed": 14},
]

MASK = (1 << 64) - 1


def values(seed, name, count):
    """The formula of models/src/tiny.rs, `value`, for indices 0 to count - 1."""
    fnv1a = 0xCBF29CE484222325
    for byte in name.encode():
        fnv1a = ((fnv1a ^ byte) * 0x100000001B3) & MASK
    step = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = np.uint64((seed ^ fnv1a) & MASK) + step
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


def check_formula():
    """The three values that models/src/tiny.rs pins in its test."""
    assert values(1, "token_embd.weight", 1)[0] == 0.7522221803665161
    assert values(1, "blk.1.ffn_down.weight", 8192)[8191] == 0.5585557222366333
    assert values(2**64 - 1, "", 1)[0] == -0.6176941394805908


def tensor(seed, name, *shape):
    """A tensor as the GGUF file holds it, [rows, cols]."""
    if name.endswith("norm.weight"):
        centre, spread = 1.0, 0.1
    elif name.endswith(".bias"):
        centre, spread = 0.0, 0.1
    elif name == "token_embd.weight":
        centre, spread = 0.0, 1.0
    else:
        centre, spread = 0.0, np.sqrt(3.0 / shape[-1])
    flat = centre + spread * values(seed, name, int(np.prod(shape)))
    return torch.from_numpy(flat.astype(np.float32).reshape(shape))


def unpermute(weight, heads):
    """Llama's query and key rows: GGUF has pairs side by side, transformers has halves."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).transpose(1, 2).reshape(rows, cols)


def state_dict(case):
    seed, llama, gemma3 = case["seed"], case["family"] == "llama", case["family"] == "gemma3"
    q, kv = HEADS * HEAD, KV_HEADS * HEAD
    state = {
        "model.embed_tokens.weight": tensor(seed, "token_embd.weight", VOCAB, D),
        "model.norm.weight": tensor(seed, "output_norm.weight", D),
    }
    state["lm_head.weight"] = (
        state["model.embed_tokens.weight"] if case["tied"] else tensor(seed, "output.weight", VOCAB, D)
    )
    for i in range(LAYERS):
        ours, theirs = f"blk.{i}.", f"model.layers.{i}."
        for role, name, heads, rows in (("attn_q", "q_proj", HEADS, q), ("attn_k", "k_proj", KV_HEADS, kv)):
            weight = tensor(seed, f"{ours}{role}.weight", rows, D)
            state[f"{theirs}self_attn.{name}.weight"] = unpermute(weight, heads) if llama else weight
        state[theirs + "self_attn.v_proj.weight"] = tensor(seed, ours + "attn_v.weight", kv, D)
        state[theirs + "self_attn.o_proj.weight"] = tensor(seed, ours + "attn_output.weight", D, q)
        state[theirs + "mlp.gate_proj.weight"] = tensor(seed, ours + "ffn_gate.weight", FF, D)
        state[theirs + "mlp.up_proj.weight"] = tensor(seed, ours + "ffn_up.weight", FF, D)
        state[theirs + "mlp.down_proj.weight"] = tensor(seed, ours + "ffn_down.weight", D, FF)
        state[theirs + "input_layernorm.weight"] = tensor(seed, ours + "attn_norm.weight", D)
        if gemma3:
            for role, name, width in GEMMA3_NORMS:
                state[f"{theirs}{name}.weight"] = tensor(seed, f"{ours}{role}.weight", width)
            continue
        state[theirs + "post_attention_layernorm.weight"] = tensor(seed, ours + "ffn_norm.weight", D)
        if not llama:
            for role, name, rows in (("attn_q", "q_proj", q), ("attn_k", "k_proj", kv), ("attn_v", "v_proj", kv)):
                state[f"{theirs}self_attn.{name}.bias"] = tensor(seed, f"{ours}{role}.bias", rows)
    if gemma3:
        # transformers norms with 1 + weight; GGUF has the sum.
        state = {name: t - 1.0 if "norm" in name else t for name, t in state.items()}
    return state


GEMMA3_NORMS = [
    ("attn_q_norm", "self_attn.q_norm", HEAD),
    ("attn_k_norm", "self_attn.k_norm", HEAD),
    ("post_attention_norm", "post_attention_layernorm", D),
    ("ffn_norm", "pre_feedforward_layernorm", D),
    ("post_ffw_norm", "post_feedforward_layernorm", D),
]


def build(case):
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }
    config_of, model_of = kinds[case["family"]]
    rope = {"rope_type": "default", **case.get("scaling", {}), "rope_theta": case["rope_base"]}
    more = {}
    if "window" in case:
        tokens, period = case["window"]
        limited = [(i + 1) % period != 0 for i in range(LAYERS)]
        more = {
            "head_dim": HEAD,
            "query_pre_attn_scalar": HEAD,
            "sliding_window": tokens,
            "layer_types": ["sliding_attention" if l else "full_attention" for l in limited],
        }
        local = {"rope_type": "default", "rope_theta": 10000.0}
        rope = {"full_attention": rope, "sliding_attention": local}
    config = config_of(
        **more,
        vocab_size=VOCAB,
        hidden_size=D,
        intermediate_size=FF,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        tie_word_embeddings=case["tied"],
        rope_parameters=rope,
        attn_implementation="eager",
        dtype=torch.float32,
    )
    model = model_of(config).eval()
    model.load_state_dict(state_dict(case), strict=True)
    return model


def rope_factors(case, model):
    """What GGUF stores as rope_freqs.weight: plain inverse frequencies over those used."""
    plain = 1.0 / case["rope_base"] ** (np.arange(0, HEAD, 2, dtype=np.float64) / HEAD)
    if "window" in case:
        return None
    used = model.model.rotary_emb.inv_freq.double().numpy()
    factors = (plain / used).astype(np.float32)
    if "scaling" not in case:
        assert np.allclose(factors, 1.0, atol=1e-6), factors
        return None
    assert factors.min() >= 0.999 and factors.max() > 7.9 and len(set(np.round(factors, 3))) > 2, factors
    return [float(f) for f in factors]


def main():
    check_formula()
    torch.set_num_threads(1)
    tokens = [(i * i * 7 + 13 * i + 5) % VOCAB for i in range(POSITIONS)]
    cases = []
    for case in CASES:
        model = build(case)
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0]
        assert logits.dtype == torch.float32 and logits.shape == (POSITIONS, VOCAB)
        (HERE / f"{case['name']}.f32").write_bytes(logits.numpy().astype("<f4").tobytes())
        written = {key: case[key] for key in ("name", "family", "tied", "rope_base", "seed")}
        written["window"] = case.get("window")
        cases.append({**written, "rope_factors": rope_factors(case, model)})
        print(case["name"], "range", float(logits.min()), float(logits.max()))
    golden = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "layers": LAYERS,
        "d_model": D,
        "q_heads": HEADS,
        "kv_heads": KV_HEADS,
        "d_ff": FF,
        "vocab": VOCAB,
        "context": CONTEXT,
        "tokens": tokens,
        "cases": cases,
    }
    (HERE / "tiny.json").write_text(json.dumps(golden, indent=1) + "\n")


main()
