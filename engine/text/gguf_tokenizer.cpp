// Reads the tokenizer of a GGUF file from its keys "tokenizer.ggml.*" and "tokenizer.chat_template"
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
#include "readers.h"

#include <redco/detail/article.h>
#include <redco/error.h>
#include <redco/gguf.h>

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

}  // namespace

TokenizerParts read_gguf_tokenizer(const std::string& where, const Tree::Dict& values) {
  Metadata metadata(where, values);
  auto key = [](const char* name) { return std::string(prefix) + name; };
  Parts parts;
  auto model = metadata.at<std::string>(key("model"));
  require(model == "gpt2" || model == "llama", where, key("model"), " is \"", model,
          "\", expected \"gpt2\" or \"llama\"");
  bool is_sentencepiece = model == "llama";
  parts.model = is_sentencepiece ? Parts::Model::sentencepiece_bpe : Parts::Model::byte_level_bpe;
  parts.tokens = metadata.list<std::string>(key("tokens"));
  for (double score : metadata.list<double>(key("scores"))) parts.scores.push_back(float(score));
  for (int64_t type : metadata.list<int64_t>(key("token_type"))) {
    require(type >= Parts::normal && type <= Parts::byte, where, key("token_type"), " has ", type,
            ", expected ", int{Parts::normal}, " to ", int{Parts::byte});
    parts.types.push_back(int32_t(type));
  }
  parts.merges = metadata.list<std::string>(key("merges"));
  parts.pre_tokenizer = metadata.find<std::string>(key("pre")).value_or("default");
  // The defaults are those of llama.cpp: the first tokens of a SentencePiece vocabulary have fixed
  // roles, and its texts get a begin token, as those of LLaMA 3 do.
  auto token = [&](const char* name, int64_t fixed) {
    auto id = metadata.find<int64_t>(key(name));
    bool is_fixed = is_sentencepiece && fixed < int64_t(parts.tokens.size());
    return !id && is_fixed ? std::optional(fixed) : id;
  };
  parts.unk_id = token("unknown_token_id", 0);
  parts.bos_id = token("bos_token_id", 1);
  parts.eos_id = token("eos_token_id", 2);
  parts.pad_id = metadata.find<int64_t>(key("padding_token_id"));
  bool begins = is_sentencepiece || parts.pre_tokenizer == "llama-bpe";
  parts.add_bos = metadata.find<bool>(key("add_bos_token")).value_or(begins);
  parts.add_eos = metadata.find<bool>(key("add_eos_token")).value_or(false);
  require(!parts.add_bos || parts.bos_id, where, "texts begin with the token ", key("bos_token_id"),
          ", which is missing");
  require(!parts.add_eos || parts.eos_id, where, "texts end with the token ", key("eos_token_id"),
          ", which is missing");
  parts.add_space_prefix = metadata.find<bool>(key("add_space_prefix")).value_or(true);
  parts.remove_extra_whitespaces =
      metadata.find<bool>(key("remove_extra_whitespaces")).value_or(false);
  parts.chat_template = metadata.find<std::string>("tokenizer.chat_template").value_or("");
  return parts;
}

}  // namespace redco::text
