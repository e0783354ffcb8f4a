"""Ostler against llama.cpp on one file, in turns: the build that the public package carries.

    pip install llama-cpp-python==0.3.36
    cargo build --release
    python benches/peer.py MODEL.gguf [--threads 2] [--depth 0,2048] [--rounds 3] [--kv f16]

Both sides read the same number of tokens in chunks of 512 and say the same number, with flash attention on.
Every measurement is a process of its own, and the two take turns, so that a machine that slows down slows both:
compare the ratios. Prints CSV: medians in tokens a second. The package builds llama.cpp for the machine
that installs it unless CMAKE_ARGS says otherwise.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time

CHUNK = 512


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a .gguf file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", default="0,2048", help="tokens of context before what is timed")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--decode", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", choices=["f16", "q8_0"], default="f16")
    parser.add_argument("--ostler", default="target/release/ostler", help="the program")
    parser.add_argument("--measure-peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        given.depths = [int(depth) for depth in given.depth.split(",")]
    except ValueError:
        parser.error(f"--depth: need numbers with commas between, have {given.depth}")
    return given


def measure_peer(given):
    """What the package's llama.cpp does, as lines of `test depth tokens_a_second`."""
    import llama_cpp

    kv_type = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}[given.kv]
    room = max(given.depths) + max(given.prefill, given.decode)
    llama = llama_cpp.Llama(
        model_path=given.model,
        n_ctx=room,
        n_batch=CHUNK,
        n_ubatch=CHUNK,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        flash_attn=True,
        type_k=kv_type,
        type_v=kv_type,
        verbose=False,
    )
    context, vocabulary = llama.ctx, llama.n_vocab()

    def read(count, chunk):
        for start in range(0, count, chunk):
            size = min(chunk, count - start)
            ids = [(start + i) * 2654435761 % vocabulary for i in range(size)]
            ids = (ctypes.c_int32 * size)(*ids)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, size)) != 0:
                raise SystemExit("llama.cpp refused a batch")
        llama_cpp.llama_synchronize(context)

    def timed(test, depth, count, chunk):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        read(depth, CHUNK)
        begin = time.perf_counter()
        read(count, chunk)
        print(test, depth, count / (time.perf_counter() - begin))

    # Warms the caches, and what the library prepares at its first pass.
    read(64, 64)
    for depth in given.depths:
        timed("prefill", depth, given.prefill, CHUNK)
        timed("decode", depth, given.decode, 1)


def peer(given):
    command = [sys.executable, __file__, *sys.argv[1:], "--measure-peer"]
    lines = run(command).splitlines()
    return {(test, int(depth)): float(speed) for test, depth, speed in map(str.split, lines)}


def ours(given):
    seen = {}
    for test, count in [("prefill", given.prefill), ("decode", given.decode)]:
        command = [given.ostler, "bench", "speed", "--json", "--rounds", "1", "-m", given.model]
        command += ["-t", str(given.threads), "--kv-type", given.kv]
        command += [f"--{test}", str(count), "--depth", ",".join(map(str, given.depths))]
        for row in json.loads(run(command)):
            seen[row["test"], row["depth"]] = row["tok_per_s"]
    return seen


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def main():
    given = options()
    if given.measure_peer:
        return measure_peer(given)
    seen = {}
    for _ in range(given.rounds):
        for name, engine in [("ostler", ours), ("llama.cpp", peer)]:
            for work, speed in engine(given).items():
                seen.setdefault(work, {}).setdefault(name, []).append(speed)
    print("model,threads,kv,test,depth,ostler_tok_s,llama_cpp_tok_s,ratio")
    model = given.model.rsplit("/", 1)[-1].removesuffix(".gguf")
    for (test, depth), speeds in sorted(seen.items(), reverse=True):
        us, them = (statistics.median(speeds[name]) for name in ("ostler", "llama.cpp"))
        print(f"{model},{given.threads},{given.kv},{test},{depth},{us:.1f},{them:.1f},{us / them:.2f}")


if __name__ == "__main__":
    main()
