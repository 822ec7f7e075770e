// Reads a tokenizer's folder: finds its files and applies tokenizer_config.json.
#include "../io/input_file.h"
#include "../io/strict_json.h"
#include "json_fields.h"
#include "readers.h"

#include <redco/error.h>
#include <redco/gguf.h>
#include <redco/tokenizer.h>

#include <cstdint>
#include <filesystem>

namespace redco {

using namespace io;
using namespace text;
namespace fs = std::filesystem;

namespace {

constexpr int max_depth = 64;

using Files = std::map<std::string, std::string>;

std::string read_file(const fs::path& path) {
  return read_text(path, "a tokenizer's file", INT32_MAX);
}

// The tokens that a class of `transformers` adds around a text if its files have no template.
struct TokenizerClass {
  bool adds_bos = false;
  bool adds_eos = false;
  /// cls and sep instead, as in RoBERTa: two sep between the texts of a pair.
  bool like_roberta = false;
};

const std::map<std::string, TokenizerClass> sentencepiece_classes = {
    {"LlamaTokenizer", {.adds_bos = true}},
    {"T5Tokenizer", {.adds_eos = true}},
};
const std::map<std::string, TokenizerClass> byte_level_classes = {
    {"GPT2Tokenizer", {}},
    {"BartTokenizer", {.like_roberta = true}},
    {"RobertaTokenizer", {.like_roberta = true}},
};

// The classes with BERT's vocab.txt, and whether their models take token_type_ids.
const std::map<std::string, bool> wordpiece_classes = {
    {"BertTokenizer", true}, {"DistilBertTokenizer", false}, {"ElectraTokenizer", true}};

// The tokenizer's files in a folder, and their settings.
class Folder {
 public:
  explicit Folder(fs::path path);
  Tokenizer tokenizer();

 private:
  bool has(const std::string& name) const { return files_.count(name) != 0; }
  std::string where(const std::string& name) const { return (path_ / name).string() + ": "; }
  std::optional<nlohmann::json> parsed(const std::string& name) const;
  void read_config();
  void read_special_tokens(const JsonField& field);
  void read_template(const JsonField& field);
  Pipeline sentencepiece(const std::string& name) const;
  Pipeline vocab_and_merges() const;
  Pipeline clip();
  Pipeline siglip();
  Pipeline wordpiece();
  std::string with_bert_settings(std::string tokenizer_json) const;
  void read_inputs();
  void add_listed_tokens(Pipeline& pipeline) const;
  std::vector<AddedToken> role(const Pipeline& pipeline, const char* name) const;
  void add_template(Pipeline& pipeline, TokenizerClass kind) const;
  std::string class_name() const;

  fs::path path_;
  Files files_;
  nlohmann::json config_ = nlohmann::json::object();
  nlohmann::json added_ = nlohmann::json::object();
  Settings settings_;
};

constexpr const char* file_names[] = {"tokenizer.json",
                                      "spiece.model",
                                      "tokenizer.model",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "chat_template.jinja",
                                      "vocab.txt"};

Folder::Folder(fs::path path) : path_(std::move(path)) {
  for (const char* name : file_names)
    if (fs::is_regular_file(path_ / name)) files_[name] = read_file(path_ / name);
}

std::optional<nlohmann::json> Folder::parsed(const std::string& name) const {
  auto file = files_.find(name);
  if (file == files_.end()) return std::nullopt;
  return parse_json(where(name), file->second, max_depth);
}

// A token as a string, or as an object with its "content".
std::string token_content(const JsonField& field) {
  return field.json().is_object() ? field.at("content").text() : field.text();
}

void read_side(const std::optional<JsonField>& field, Side& side) {
  if (!field) return;
  std::string name = field->text();
  if (name != "left" && name != "right") field->fail_expecting("left or right");
  side = name == "left" ? Side::left : Side::right;
}

void Folder::read_special_tokens(const JsonField& field) {
  for (const char* role : {"bos", "eos", "unk", "sep", "cls", "pad", "mask"})
    if (auto token = field.find(std::string(role) + "_token"))
      settings_.special_tokens[role] = token_content(*token);
  if (auto more = field.find("additional_special_tokens")) {
    settings_.additional_special_tokens.clear();
    for (const JsonField& token : more->items())
      settings_.additional_special_tokens.push_back(token_content(token));
  }
}

void Folder::read_template(const JsonField& field) {
  if (field.json().is_string()) {
    settings_.chat_template = field.text();
    return;
  }
  for (const JsonField& item : field.items()) {
    std::string name = item.at("name").text();
    if (name == "default") settings_.chat_template = item.at("template").text();
    if (name == "tool_use") settings_.tool_template = item.at("template").text();
  }
}

void Folder::read_config() {
  if (auto map = parsed("special_tokens_map.json"))
    read_special_tokens(JsonField(*map, where("special_tokens_map.json")));
  if (auto added = parsed("added_tokens.json")) added_ = std::move(*added);
  JsonField config(config_, where("tokenizer_config.json"));
  read_special_tokens(config);
  read_side(config.find("padding_side"), settings_.padding_side);
  read_side(config.find("truncation_side"), settings_.truncation_side);
  if (auto length = config.find("model_max_length")) {
    // A huge number means no limit.
    double value = length->number();
    if (value < 0) length->fail_expecting("a length");
    if (value <= INT32_MAX) settings_.model_max_length = int64_t(value);
  }
  settings_.clean_up_tokenization_spaces = config.boolean("clean_up_tokenization_spaces", false);
  settings_.writes_times = class_name() == "WhisperTokenizer";
  if (auto chat = config.find("chat_template")) read_template(*chat);
  if (has("chat_template.jinja")) settings_.chat_template = files_.at("chat_template.jinja");
}

std::string Folder::class_name() const {
  JsonField config(config_, where("tokenizer_config.json"));
  std::string name = config.text("tokenizer_class", "");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

// Adds tokens that the configuration lists in addition to the vocabulary.
void Folder::add_listed_tokens(Pipeline& pipeline) const {
  auto add = [&](AddedToken token) {
    for (const AddedToken& known : pipeline.added_tokens)
      if (known.content == token.content) return;
    pipeline.added_tokens.push_back(std::move(token));
  };
  auto check_id = [](const JsonField& field, int64_t id) {
    if (id < 0 || id > largest_id) field.fail_expecting("a token's number");
    return id;
  };
  JsonField config(config_, where("tokenizer_config.json"));
  if (auto listed = config.find("added_tokens_decoder")) {
    for (const auto& [number, value] : listed->json().items()) {
      JsonField field = listed->at(number);
      bool is_number = !number.empty() && number.size() <= 10 &&
                       number.find_first_not_of("0123456789") == number.npos;
      if (!is_number) field.fail_expecting("a token's number as its key");
      AddedToken token{.content = field.at("content").text(),
                       .id = check_id(field, std::stoll(number))};
      token.special = field.boolean("special", false);
      token.single_word = field.boolean("single_word", false);
      token.lstrip = field.boolean("lstrip", false);
      token.rstrip = field.boolean("rstrip", false);
      token.normalized = field.boolean("normalized", !token.special);
      add(std::move(token));
    }
  }
  JsonField added(added_, where("added_tokens.json"));
  if (!added_.is_object()) added.fail_expecting("an object of tokens and their numbers");
  for (const auto& [content, value] : added_.items()) {
    JsonField id = added.at(content);
    add({.content = content, .id = check_id(id, id.integer())});
  }
}

std::vector<AddedToken> Folder::role(const Pipeline& pipeline, const char* name) const {
  auto token = settings_.special_tokens.find(name);
  if (token == settings_.special_tokens.end()) return {};
  auto id = pipeline.model->vocabulary().id(token->second);
  for (const AddedToken& added : pipeline.added_tokens)
    if (added.content == token->second) id = added.id;
  require(id.has_value(), where("tokenizer_config.json"), name, "_token is ",
          in_quotes(token->second), ", which is not in the vocabulary");
  return {{.content = token->second, .id = *id, .special = true}};
}

void Folder::add_template(Pipeline& pipeline, TokenizerClass kind) const {
  JsonField config(config_, where("tokenizer_config.json"));
  PostProcessor& post = pipeline.post_processor;
  if (kind.like_roberta) {
    auto cls = role(pipeline, "cls"), sep = role(pipeline, "sep");
    if (cls.empty() || sep.empty()) return;
    post.trims = {{.add_prefix_space = config.boolean("add_prefix_space", false)}};
    post.around = surround_like_roberta(cls[0], sep[0]);
    return;
  }
  std::vector<AddedToken> before, after;
  if (config.boolean("add_bos_token", kind.adds_bos)) before = role(pipeline, "bos");
  if (config.boolean("add_eos_token", kind.adds_eos)) after = role(pipeline, "eos");
  if (!before.empty() || !after.empty()) post.around = surround(before, after);
}

Pipeline Folder::sentencepiece(const std::string& name) const {
  Pipeline pipeline =
      sentencepiece_pipeline(where(name), read_sentencepiece(where(name), files_.at(name)));
  add_listed_tokens(pipeline);
  auto found = sentencepiece_classes.find(class_name());
  TokenizerClass kind = found == sentencepiece_classes.end() ? TokenizerClass() : found->second;
  JsonField config(config_, where("tokenizer_config.json"));
  auto extra = config.find("extra_ids");
  // T5's sentinels follow the pieces in reverse order.
  if (extra && !config.find("added_tokens_decoder")) {
    int64_t n = extra->integer();
    if (n < 0 || n > 100'000) extra->fail_expecting("a count");
    auto id = int64_t(pipeline.model->vocabulary().size());
    while (n-- > 0)
      pipeline.added_tokens.push_back(
          {.content = "<extra_id_" + std::to_string(n) + ">", .id = id++, .special = true});
  }
  add_template(pipeline, kind);
  return pipeline;
}

Pipeline Folder::vocab_and_merges() const {
  std::string name = class_name();
  auto kind = byte_level_classes.find(name.empty() ? "GPT2Tokenizer" : name);
  require(kind != byte_level_classes.end(), where("vocab.json"), "how a ", name,
          " uses it is not known, only GPT2Tokenizer, BartTokenizer, RobertaTokenizer and "
          "CLIPTokenizer; its tokenizer.json would say");
  JsonField config(config_, where("tokenizer_config.json"));
  Pipeline pipeline =
      read_vocab_and_merges(where("vocab.json"), files_.at("vocab.json"), where("merges.txt"),
                            files_.at("merges.txt"), config.boolean("add_prefix_space", false));
  add_listed_tokens(pipeline);
  if (kind->second.like_roberta)
    for (AddedToken mask : role(pipeline, "mask")) {
      mask.lstrip = true;
      pipeline.added_tokens.push_back(mask);
    }
  add_template(pipeline, kind->second);
  return pipeline;
}

Pipeline Folder::clip() {
  Pipeline pipeline = clip_pipeline(where("vocab.json"),
                                    read_bpe_files(where("vocab.json"), files_.at("vocab.json"),
                                                   where("merges.txt"), files_.at("merges.txt")),
                                    settings_);
  add_listed_tokens(pipeline);
  return pipeline;
}

Pipeline Folder::siglip() {
  JsonField config(config_, where("tokenizer_config.json"));
  std::string place = where("spiece.model");
  Pipeline pipeline = siglip_pipeline(place, read_sentencepiece(place, files_.at("spiece.model")),
                                      config.boolean("do_lower_case", true), settings_);
  add_listed_tokens(pipeline);
  return pipeline;
}

Pipeline Folder::wordpiece() {
  std::string name = class_name();
  require(
      name.empty() || wordpiece_classes.count(name) != 0, where("vocab.txt"), "how a ", name,
      " uses it is not known, only BertTokenizer, DistilBertTokenizer and ElectraTokenizer; its "
      "tokenizer.json would say");
  JsonField config(config_, where("tokenizer_config.json"));
  auto basic = config.find("do_basic_tokenize");
  if (basic && !basic->boolean()) basic->fail_expecting("true");
  BertSpec spec;
  spec.lowercase = config.boolean("do_lower_case", true);
  spec.strip_accents = config.boolean("strip_accents", spec.lowercase);
  spec.spaces_around_ideographs = config.boolean("tokenize_chinese_chars", true);
  auto unknown = settings_.special_tokens.find("unk");
  Pipeline pipeline =
      read_vocab_txt(where("vocab.txt"), files_.at("vocab.txt"),
                     unknown == settings_.special_tokens.end() ? "[UNK]" : unknown->second, spec);
  add_listed_tokens(pipeline);
  add_bert_template(where("vocab.txt"), pipeline, settings_);
  return pipeline;
}

// The settings of BERT's normalizer in tokenizer_config.json take precedence, as in `transformers`.
std::string Folder::with_bert_settings(std::string tokenizer_json) const {
  if (wordpiece_classes.count(class_name()) == 0) return tokenizer_json;
  nlohmann::json file = parse_json(where("tokenizer.json"), tokenizer_json, max_depth);
  if (!file.is_object() || !file.contains("normalizer")) return tokenizer_json;
  nlohmann::json& normalizer = file["normalizer"];
  if (!normalizer.is_object() || normalizer.value("type", nlohmann::json()) != "BertNormalizer")
    return tokenizer_json;
  nlohmann::json before = normalizer;
  for (auto [key, name] :
       {std::pair("do_lower_case", "lowercase"), std::pair("strip_accents", "strip_accents"),
        std::pair("tokenize_chinese_chars", "handle_chinese_chars")})
    if (auto value = JsonField(config_, where("tokenizer_config.json")).find(key))
      normalizer[name] = value->boolean();
  return normalizer == before ? tokenizer_json : file.dump();
}

// Whether batches have token_type_ids and attention_mask.
void Folder::read_inputs() {
  auto known = wordpiece_classes.find(class_name());
  settings_.returns_type_ids =
      known == wordpiece_classes.end() ? class_name() == "DebertaV2Tokenizer" : known->second;
  JsonField config(config_, where("tokenizer_config.json"));
  if (auto inputs = config.find("model_input_names")) {
    settings_.returns_type_ids = settings_.returns_mask = false;
    for (const JsonField& name : inputs->items()) {
      settings_.returns_type_ids |= name.text() == "token_type_ids";
      settings_.returns_mask |= name.text() == "attention_mask";
    }
  }
}

Tokenizer Folder::tokenizer() {
  Pipeline pipeline;
  if (auto config = parsed("tokenizer_config.json")) config_ = std::move(*config);
  // Read before the other settings of the configuration, which take precedence.
  if (has("tokenizer.json"))
    pipeline = read_tokenizer_json(where("tokenizer.json"),
                                   with_bert_settings(files_.at("tokenizer.json")), settings_);
  read_config();
  read_inputs();
  if (has("tokenizer.json")) {
    add_listed_tokens(pipeline);
  } else if (has("spiece.model")) {
    pipeline = class_name() == "SiglipTokenizer" ? siglip() : sentencepiece("spiece.model");
  } else if (has("tokenizer.model")) {
    pipeline = sentencepiece("tokenizer.model");
  } else if (has("vocab.json") && has("merges.txt")) {
    pipeline = class_name() == "CLIPTokenizer" ? clip() : vocab_and_merges();
  } else if (has("vocab.txt")) {
    pipeline = wordpiece();
  } else {
    fail("no tokenizer in ", path_.string(),
         ": expected tokenizer.json, spiece.model, tokenizer.model, vocab.json with merges.txt, or "
         "vocab.txt");
  }
  return make_tokenizer(std::move(pipeline), std::move(settings_), std::move(files_));
}

}  // namespace

void text::remove_other_files(const std::string& folder, const Files& kept) {
  for (const char* name : file_names) {
    std::error_code ignored;
    if (kept.count(name) == 0) fs::remove(fs::path(folder) / name, ignored);
  }
}

Tokenizer Tokenizer::from_pretrained(const std::string& path) {
  fs::path given(path);
  if (fs::is_directory(given)) return Folder(given).tokenizer();
  bool may_be_on_hub = !path.empty() && path[0] != '/' && path[0] != '.';
  require(fs::exists(given), "there is no ", path, ": expected a tokenizer's folder or file",
          may_be_on_hub ? "; tokenizers of the Hub are not downloaded: get the folder, as with `hf "
                          "download NAME --local-dir FOLDER`"
                        : "");
  std::string where = path + ": ";
  if (given.extension() == ".gguf")
    return from_parts(where, read_gguf_tokenizer(where, GgufFile(path).metadata()));
  std::string bytes = read_file(given);
  Files files = {{given.filename().string(), bytes}};
  if (given.extension() == ".json") {
    Settings settings;
    Pipeline pipeline = read_tokenizer_json(where, bytes, settings);
    return make_tokenizer(std::move(pipeline), std::move(settings), std::move(files));
  }
  if (given.extension() == ".txt") return from_vocab_txt(where, bytes);
  require(given.extension() == ".model", where,
          "expected a folder, a tokenizer.json, a vocab.txt, a SentencePiece .model or a .gguf");
  return make_tokenizer(sentencepiece_pipeline(where, read_sentencepiece(where, bytes)), {},
                        std::move(files));
}

}  // namespace redco
