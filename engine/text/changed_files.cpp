// Writes a tokenizer's files anew after its tokens were changed.
#include "../io/strict_json.h"
#include "tokenizer_state.h"

#include <redco/error.h>

#include <map>
#include <utility>

namespace redco::text {

namespace {

using ordered_json = nlohmann::ordered_json;
using Files = std::map<std::string, std::string>;

constexpr const char* config_name = "tokenizer_config.json";
constexpr const char* tokenizer_name = "tokenizer.json";

// Finds members of the outermost object in the text of valid JSON, so that the rest of a large file
// stays as it is.
class Members {
 public:
  explicit Members(std::string_view text) : text_(text), at_(text.find('{') + 1) {}

  // The range of the value; empty if there is no such member.
  Range value(std::string_view key) {
    for (skip_blank(); text_[at_] == '"'; skip_blank()) {
      size_t begin = at_;
      skip_value();
      bool is_key = text_.substr(begin + 1, at_ - begin - 2) == key;
      skip_blank();
      Range range{at_, at_};
      skip_value();
      range.end = at_;
      if (is_key) return range;
    }
    return {at_, at_};
  }

 private:
  void skip_blank() { at_ = std::min(text_.find_first_not_of(" \t\r\n,:", at_), text_.size() - 1); }

  void skip_value() {
    int depth = 0;
    do {
      char c = text_[at_];
      if (c == '"') {
        while (text_[++at_] != '"') at_ += text_[at_] == '\\';
        ++at_;
      } else if (c == '{' || c == '[' || c == '}' || c == ']') {
        depth += c == '{' || c == '[' ? 1 : -1;
        ++at_;
      } else if (depth > 0) {
        ++at_;
      } else {
        at_ = text_.find_first_of(",}] \t\r\n", at_);
      }
    } while (depth > 0);
  }

  std::string_view text_;
  size_t at_;
};

// An added token as files describe it, without its number.
ordered_json described(const AddedToken& token) {
  return {{"content", token.content},         {"lstrip", token.lstrip},
          {"normalized", token.normalized},   {"rstrip", token.rstrip},
          {"single_word", token.single_word}, {"special", token.special}};
}

std::string with_added_tokens(std::string file, const std::map<int64_t, AddedToken>& tokens) {
  ordered_json list = ordered_json::array();
  for (const auto& [id, token] : tokens) {
    ordered_json entry = {{"id", id}};
    entry.update(described(token));
    list.push_back(std::move(entry));
  }
  Range range = Members(file).value("added_tokens");
  bool is_missing = range.begin == range.end;
  if (is_missing) range.begin = range.end = file.find('{') + 1;
  std::string text = list.dump(2);
  if (is_missing) text = "\"added_tokens\": " + text + ",";
  return file.replace(range.begin, range.end - range.begin, text);
}

// A configuration for a folder that has none.
ordered_json new_config(const Files& files) {
  auto file = files.find(tokenizer_name);
  if (file == files.end()) return ordered_json::object();
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  Range range = Members(file->second).value("pre_tokenizer");
  auto step = ordered_json::parse(file->second.begin() + std::ptrdiff_t(range.begin),
                                  file->second.begin() + std::ptrdiff_t(range.end), nullptr, false);
  if (step.is_object() && step.value("type", ordered_json()) == "ByteLevel")
    config["add_prefix_space"] = step.value("add_prefix_space", true);
  return config;
}

// Names a token, unless the configuration describes it already.
void name_token(ordered_json& config, const std::string& key, const std::string& content) {
  auto known = config.find(key);
  bool is_named = known != config.end() && known->is_object() &&
                  known->value("content", ordered_json()) == content;
  if (!is_named) config[key] = content;
}

}  // namespace

std::map<std::string, std::string> changed_files(const Tokenizer::State& state) {
  Files files = state.files;
  require(files.count(tokenizer_name) + files.count("vocab.json") + files.count("vocab.txt") +
                  files.count("tokenizer.model") + files.count("spiece.model") >
              0,
          "cannot save a tokenizer with changes that was read from ", files.begin()->first,
          ": read it from its folder, with redco.Tokenizer.from_pretrained(folder)");
  std::map<int64_t, AddedToken> tokens;
  for (const auto& [id, content] : state.added_by_id)
    tokens[id] = state.added.find(content)->second;
  auto known = files.find(config_name);
  ordered_json config =
      known == files.end() ? new_config(files) : ordered_json::parse(known->second);
  if (auto file = files.find(tokenizer_name); file != files.end())
    file->second = with_added_tokens(std::move(file->second), tokens);
  ordered_json decoder = ordered_json::object();
  for (const auto& [id, token] : tokens) decoder[std::to_string(id)] = described(token);
  config["added_tokens_decoder"] = std::move(decoder);
  for (const auto& [role, content] : state.settings.special_tokens)
    name_token(config, role + "_token", content);
  const auto& more = state.settings.additional_special_tokens;
  if (!more.empty() || config.contains("additional_special_tokens"))
    config["additional_special_tokens"] = more;
  config.erase("extra_special_tokens");
  if (state.has_new_template) {
    config.erase("chat_template");
    files.erase("chat_template.jinja");
    files.erase("chat_template.json");
    const std::string& text = state.settings.chat_template;
    if (!text.empty()) files["chat_template.jinja"] = text;
  }
  files[config_name] = config.dump(2) + "\n";
  // The configuration has what these files say, and is read instead of them.
  files.erase("special_tokens_map.json");
  files.erase("added_tokens.json");
  return files;
}

}  // namespace redco::text
