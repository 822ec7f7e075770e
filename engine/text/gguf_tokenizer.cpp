// Reads the tokenizer of a GGUF file from its keys "tokenizer.ggml.*" and "tokenizer.chat_template"
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
#include "gguf_words.h"
#include "readers.h"

#include <redco/detail/article.h>
#include <redco/error.h>
#include <redco/gguf.h>

#include <cctype>
#include <map>
#include <optional>
#include <string>
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

// Files do not say that Phi-3's special tokens take in the whitespace after them. llama.cpp knows
// it by the model's name.
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
  // A vocabulary has one unknown token; others are control tokens.
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
