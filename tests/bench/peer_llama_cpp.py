"""The peer of quantized.lua: llama.cpp, by its package llama-cpp-python.

peer_llama_cpp.py FILE PROMPT NEW THREADS CLOCK: prints the seconds of a prompt of that length, those of
NEW greedy tokens after it by a clock of `time`, and the peak of memory in MB.
peer_llama_cpp.py make FILE TYPE: writes a GGUF file of random weights, of the size of TinyLlama
1.1B, with llama.cpp's own quantization: q8_0, q4_0 or q4_k_m.
"""
import ctypes
import os
import resource
import sys
import time

import llama_cpp
import numpy

SIZES = dict(vocab=32000, hidden=2048, inner=5632, layers=22, heads=32, groups=4)


@llama_cpp.llama_log_callback
def ignore(*_):
    pass


def measure(path, prompt, new, threads, clock):
    settings = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = prompt + new
    settings.n_batch = settings.n_ubatch = prompt
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def run(tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        assert llama_cpp.llama_decode(context, batch) == 0
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(numpy.ctypeslib.as_array(logits, (n_vocab,)).argmax())

    tokens = [100 + 7 * i % 1000 for i in range(prompt)]
    run(tokens[:8])
    memory = llama_cpp.llama_get_memory(context)
    llama_cpp.llama_memory_clear(memory, True)
    begin = clock()
    token = run(tokens)
    middle = clock()
    for _ in range(new):
        token = run([token])
    return middle - begin, clock() - middle


def write_floats(path):
    import gguf
    writer = gguf.GGUFWriter(path, "llama")
    s = SIZES
    writer.add_context_length(2048)
    writer.add_embedding_length(s["hidden"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["inner"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["groups"])
    writer.add_rope_dimension_count(s["hidden"] // s["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("llama")
    special = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3)] + [
        (f"<0x{i:02X}>".encode(), 6) for i in range(256)]
    texts = [f"w{i}".encode() for i in range(s["vocab"] - len(special))]
    writer.add_token_list([text for text, _ in special] + texts)
    writer.add_token_scores([0.0] * s["vocab"])
    writer.add_token_types([kind for _, kind in special] + [1] * len(texts))
    random = numpy.random.default_rng(0)
    keys = s["hidden"] // s["heads"] * s["groups"]

    def add(name, *shape):
        values = random.standard_normal(shape, numpy.float32)
        writer.add_tensor(name, (values * 0.02).astype(numpy.float16) if len(shape) > 1
                          else numpy.ones(shape, numpy.float32))

    add("token_embd.weight", s["vocab"], s["hidden"])
    add("output_norm.weight", s["hidden"])
    add("output.weight", s["vocab"], s["hidden"])
    for i in range(s["layers"]):
        for name, n_out, n_in in (("attn_q", s["hidden"], s["hidden"]),
                                  ("attn_k", keys, s["hidden"]), ("attn_v", keys, s["hidden"]),
                                  ("attn_output", s["hidden"], s["hidden"]),
                                  ("ffn_gate", s["inner"], s["hidden"]),
                                  ("ffn_up", s["inner"], s["hidden"]),
                                  ("ffn_down", s["hidden"], s["inner"])):
            add(f"blk.{i}.{name}.weight", n_out, n_in)
        add(f"blk.{i}.attn_norm.weight", s["hidden"])
        add(f"blk.{i}.ffn_norm.weight", s["hidden"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(floats, path, name):
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
                      "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
                      "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}[name]
    settings.allow_requantize = True
    assert llama_cpp.llama_model_quantize(floats.encode(), path.encode(),
                                          ctypes.byref(settings)) == 0


if __name__ == "__main__":
    llama_cpp.llama_log_set(ignore, ctypes.c_void_p(0))
    if sys.argv[1] == "make":
        path, name = sys.argv[2:4]
        floats = sys.argv[4] if len(sys.argv) > 4 else path + ".floats"
        if not os.path.exists(floats):
            write_floats(floats)
        quantize(floats, path, name)
    else:
        seconds = measure(sys.argv[1], *map(int, sys.argv[2:5]), getattr(time, sys.argv[5]))
        print(*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
