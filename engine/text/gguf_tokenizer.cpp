// Reads and writes the tokenizer of a GGUF file: its keys "tokenizer.ggml.*" and
// "tokenizer.chat_template" (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
#include "gguf_words.h"
#include "readers.h"

#include <redco/detail/article.h>
#include <redco/error.h>
#include <redco/gguf.h>
#include <redco/tokenizer.h>

#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace redco::text {

namespace {

using Parts = TokenizerParts;

constexpr const char* prefix = "tokenizer.ggml.";

// Typed access to the metadata of a file. Errors begin with `where` and name the key.
class Metadata {
 public:
  Metadata(std::string where, const Tree::Dict& values)
      : where_(std::move(where)), values_(values) {}

  template <class T>
  std::optional<T> find(const std::string& key) const {
    auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return value<T>(key, found->second);
  }

  template <class T>
  T at(const std::string& key) const {
    auto found = find<T>(key);
    require(found.has_value(), where_, "the key ", key, " is missing");
    return *found;
  }

  template <class T>
  std::vector<T> list(const std::string& key) const {
    std::vector<T> values;
    auto found = values_.find(key);
    if (found == values_.end()) return values;
    require(found->second.is<Tree::List>(), where_, key, " is ", with_article(found->second.kind()),
            ", expected a list");
    for (const Tree& entry : found->second.as<Tree::List>()) values.push_back(value<T>(key, entry));
    return values;
  }

 private:
  template <class T>
  T value(const std::string& key, const Tree& tree) const {
    require(tree.is<T>(), where_, key, " has ", with_article(tree.kind()), ", expected ",
            with_article(Tree(T{}).kind()));
    return tree.as<T>();
  }

  std::string where_;
  const Tree::Dict& values_;
};

// The kinds of vocabularies. As in llama.cpp, some tokens have fixed places unless the file says
// otherwise.
struct Kind {
  Parts::Model model;
  std::optional<int64_t> unk_id, bos_id, eos_id, pad_id;
};
const std::map<std::string, Kind> models = {
    {"gpt2", {Parts::Model::byte_level_bpe, {}, {}, {}, {}}},
    {"llama", {Parts::Model::sentencepiece_bpe, 0, 1, 2, {}}},
    {"t5", {Parts::Model::unigram, 2, {}, 1, 0}},
};

// Phi-3's special tokens absorb the whitespace after them. Files do not say this; llama.cpp
// recognises the model by its name.
bool is_phi3(std::string name) {
  for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
  return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
}

}  // namespace

TokenizerParts read_gguf_tokenizer(const std::string& where, const Tree::Dict& values) {
  Metadata metadata(where, values);
  auto key = [](const char* name) { return std::string(prefix) + name; };
  Parts parts;
  auto model = metadata.at<std::string>(key("model"));
  auto kind = models.find(model);
  require(kind != models.end(), where, key("model"), " is \"", model,
          "\", expected \"gpt2\", \"llama\" or \"t5\"");
  parts.model = kind->second.model;
  parts.remove_extra_whitespaces = metadata.find<bool>(key("remove_extra_whitespaces"))
                                       .value_or(parts.model == Parts::Model::unigram);
  parts.tokens = metadata.list<std::string>(key("tokens"));
  for (double score : metadata.list<double>(key("scores"))) parts.scores.push_back(float(score));
  for (int64_t type : metadata.list<int64_t>(key("token_type"))) {
    require(type >= Parts::normal && type <= Parts::byte, where, key("token_type"), " has ", type,
            ", expected ", int{Parts::normal}, " to ", int{Parts::byte});
    parts.types.push_back(int32_t(type));
  }
  parts.merges = metadata.list<std::string>(key("merges"));
  parts.pre_tokenizer = metadata.find<std::string>(key("pre")).value_or("default");
  auto token = [&](const char* name, std::optional<int64_t> fixed) {
    auto id = metadata.find<int64_t>(key(name));
    bool is_fixed = fixed && *fixed < int64_t(parts.tokens.size());
    return !id && is_fixed ? fixed : id;
  };
  parts.unk_id = token("unknown_token_id", kind->second.unk_id);
  parts.bos_id = token("bos_token_id", kind->second.bos_id);
  parts.eos_id = token("eos_token_id", kind->second.eos_id);
  parts.pad_id = token("padding_token_id", kind->second.pad_id);
  // A vocabulary has one unknown token; further tokens of that type become control tokens.
  for (size_t i = 0; i < parts.types.size(); ++i)
    if (parts.types[i] == Parts::unknown && parts.unk_id && int64_t(i) != *parts.unk_id)
      parts.types[i] = Parts::control;
  bool begins = parts.model == Parts::Model::byte_level_bpe
                    ? gguf_words(where, parts.pre_tokenizer).add_bos
                    : parts.model == Parts::Model::sentencepiece_bpe;
  parts.add_bos = metadata.find<bool>(key("add_bos_token")).value_or(begins);
  parts.add_eos =
      metadata.find<bool>(key("add_eos_token")).value_or(parts.model == Parts::Model::unigram);
  require(!parts.add_bos || parts.bos_id, where, "texts begin with the token ", key("bos_token_id"),
          ", which is missing");
  require(!parts.add_eos || parts.eos_id, where, "texts end with the token ", key("eos_token_id"),
          ", which is missing");
  parts.add_space_prefix = metadata.find<bool>(key("add_space_prefix")).value_or(true);
  for (int64_t byte : metadata.list<int64_t>(key("precompiled_charsmap")))
    parts.precompiled_charsmap += char(byte);
  parts.strips_after_special = is_phi3(metadata.find<std::string>("general.name").value_or(""));
  parts.chat_template = metadata.find<std::string>("tokenizer.chat_template").value_or("");
  return parts;
}

}  // namespace redco::text

namespace redco {

std::vector<GgufValue> gguf_tokenizer(const Tokenizer& tokenizer, int64_t n_tokens) {
  TokenizerParts parts = tokenizer.parts();
  const auto n = int64_t(parts.tokens.size());
  require(n <= n_tokens, "the tokenizer has ", n, " tokens, but the embedding ", n_tokens,
          " rows: expected as many or fewer tokens");
  for (int64_t id = n; id < n_tokens; ++id) {
    parts.tokens.push_back("[PAD" + std::to_string(id) + "]");
    parts.types.push_back(TokenizerParts::unused);
  }
  std::vector<GgufValue> values;
  auto add = [&](const char* key, const char* type, Tree value) {
    values.push_back({text::prefix + std::string(key), type, std::move(value)});
  };
  auto add_list = [&](const char* key, const char* type, const auto& list) {
    Tree::List all;
    for (const auto& value : list)
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>)
        all.push_back(value);
      else if constexpr (std::is_floating_point_v<std::decay_t<decltype(value)>>)
        all.push_back(double{value});
      else
        all.push_back(int64_t{value});
    add(key, type, std::move(all));
  };
  const bool byte_level = parts.model == TokenizerParts::Model::byte_level_bpe;
  for (const auto& [name, kind] : text::models)
    if (kind.model == parts.model) add("model", "string", name);
  add("pre", "string", byte_level ? parts.pre_tokenizer : "default");
  add_list("tokens", "string[]", parts.tokens);
  add_list("token_type", "i32[]", parts.types);
  if (byte_level) {
    add_list("merges", "string[]", parts.merges);
  } else {
    parts.scores.resize(parts.tokens.size(), -1e9f);
    add_list("scores", "f32[]", parts.scores);
    add("add_space_prefix", "bool", parts.add_space_prefix);
    add("remove_extra_whitespaces", "bool", parts.remove_extra_whitespaces);
    std::vector<int64_t> bytes;
    for (char byte : parts.precompiled_charsmap) bytes.push_back(static_cast<unsigned char>(byte));
    if (!bytes.empty()) add_list("precompiled_charsmap", "u8[]", bytes);
  }
  for (auto [key, id] :
       {std::pair("bos_token_id", parts.bos_id), std::pair("eos_token_id", parts.eos_id),
        std::pair("unknown_token_id", parts.unk_id), std::pair("padding_token_id", parts.pad_id)})
    if (id) add(key, "u32", *id);
  add("add_bos_token", "bool", parts.add_bos);
  add("add_eos_token", "bool", parts.add_eos);
  if (!parts.chat_template.empty())
    values.push_back({"tokenizer.chat_template", "string", parts.chat_template});
  return values;
}

}  // namespace redco
