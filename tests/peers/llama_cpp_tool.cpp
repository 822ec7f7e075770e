// Calls llama.cpp's library for the peer tests:
//   llama_cpp_tool tokens FILE.gguf TEXTS         the numbers of the tokens of each line's text
//   llama_cpp_tool logits FILE.gguf OUT ADAPTER ID...   the logits of each place, as float32
//   llama_cpp_tool quantize FROM.gguf TO.gguf TYPE
// ADAPTER may be "-". TYPE is the number of a file type.
#include <ggml-backend.h>
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

static void fail(const std::string& what) {
  std::cerr << what << "\n";
  std::exit(1);
}

static llama_model* load(const char* path, bool vocab_only) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocab_only;
  params.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(path, params);
  if (model == nullptr) fail(std::string("llama.cpp cannot open ") + path);
  return model;
}

static int tokens(char** arguments) {
  const llama_vocab* vocab = llama_model_get_vocab(load(arguments[0], true));
  std::ifstream file(arguments[1]);
  for (std::string line; std::getline(file, line);) {
    std::vector<llama_token> ids(line.size() + 16);
    const int n = llama_tokenize(vocab, line.data(), int(line.size()), ids.data(), int(ids.size()),
                                 true, true);
    if (n < 0) fail("llama_tokenize fails");
    for (int i = 0; i < n; ++i) std::cout << (i > 0 ? " " : "") << ids[size_t(i)];
    std::cout << "\n";
  }
  return 0;
}

static int logits(int n, char** arguments) {
  llama_model* model = load(arguments[0], false);
  std::vector<llama_token> ids;
  for (int i = 3; i < n; ++i) ids.push_back(std::atoi(arguments[i]));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = uint32_t(ids.size()) + 8;
  params.n_batch = params.n_ubatch = params.n_ctx;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.n_threads = params.n_threads_batch = 1;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) fail("llama.cpp makes no context");
  if (std::strcmp(arguments[2], "-") != 0) {
    llama_adapter_lora* adapter = llama_adapter_lora_init(model, arguments[2]);
    if (adapter == nullptr) fail(std::string("llama.cpp cannot open ") + arguments[2]);
    float scale = 1;
    llama_set_adapters_lora(context, &adapter, 1, &scale);
  }
  llama_batch batch = llama_batch_init(int(ids.size()), 0, 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    batch.token[i] = ids[i];
    batch.pos[i] = llama_pos(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = int(ids.size());
  if (llama_decode(context, batch) != 0) fail("llama_decode fails");
  std::ofstream out(arguments[1], std::ios::binary);
  const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (size_t i = 0; i < ids.size(); ++i)
    out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, int(i))),
              std::streamsize(sizeof(float)) * n_vocab);
  return 0;
}

int main(int argc, char** argv) {
  const std::string command = argc > 3 ? argv[1] : "";
  ggml_backend_load_all();
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
      },
      nullptr);
  llama_backend_init();
  if (command == "tokens") return tokens(argv + 2);
  if (command == "logits" && argc > 5) return logits(argc - 2, argv + 2);
  if (command == "quantize" && argc == 5) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = llama_ftype(std::atoi(argv[4]));
    return int(llama_model_quantize(argv[2], argv[3], &params));
  }
  fail("unknown command");
}
