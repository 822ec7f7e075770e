// Reads a tokenizer's folder: finds its files and applies tokenizer_config.json.
#include "../io/input_file.h"
#include "../io/strict_json.h"
#include "json_fields.h"
#include "listed_tokens.h"
#include "readers.h"
#include "tokenizer_class.h"

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

using Files = std::map<std::string, std::string>;

std::string read_file(const fs::path& path) {
  return read_text(path, "a tokenizer's file", INT32_MAX);
}

// The tokens that a class of `transformers` adds around a text if its files have no template.
struct AroundText {
  bool adds_bos = false;
  bool adds_eos = false;
  /// cls and sep instead, as in RoBERTa: two sep between the texts of a pair.
  bool like_roberta = false;
};

const std::map<std::string, AroundText> sentencepiece_classes = {
    {"GemmaTokenizer", {.adds_bos = true}},
    {"LlamaTokenizer", {.adds_bos = true}},
    {"MT5Tokenizer", {.adds_eos = true}},
    {"T5Tokenizer", {.adds_eos = true}},
};
const std::map<std::string, AroundText> byte_level_classes = {
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
  void read_template(const JsonField& field);
  Pipeline sentencepiece(const std::string& name) const;
  Pipeline vocab_and_merges() const;
  Pipeline clip();
  Pipeline siglip();
  Pipeline wordpiece();
  JsonField config() const { return JsonField(config_, where("tokenizer_config.json")); }
  void read_listed_tokens();
  void set_normalizer(nlohmann::json& normalizer) const;
  void set_prefix_space(nlohmann::json& tokenizer) const;
  void read_inputs();
  std::vector<AddedToken> role(const Pipeline& pipeline, const char* name) const;
  void add_template(Pipeline& pipeline, AroundText kind) const;
  std::string read_class_name();
  void name_class(const std::string& name);

  fs::path path_;
  Files files_;
  nlohmann::json config_ = nlohmann::json::object();
  /// Without "Fast"; "" if no file says it.
  std::string class_name_;
  Settings settings_;
  std::optional<ListedTokens> listed_;
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
                                      "chat_template.json",
                                      "vocab.txt"};

Folder::Folder(fs::path path) : path_(std::move(path)) {
  for (const char* name : file_names)
    if (fs::is_regular_file(path_ / name)) files_[name] = read_file(path_ / name);
}

std::optional<nlohmann::json> Folder::parsed(const std::string& name) const {
  auto file = files_.find(name);
  if (file == files_.end()) return std::nullopt;
  return parse_tokenizer_json(where(name), file->second);
}

void read_side(const std::optional<JsonField>& field, Side& side) {
  if (!field) return;
  std::string name = field->text();
  if (name != "left" && name != "right") field->fail_expecting("left or right");
  side = name == "left" ? Side::left : Side::right;
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
  JsonField config = this->config();
  read_listed_tokens();
  read_side(config.find("padding_side"), settings_.padding_side);
  read_side(config.find("truncation_side"), settings_.truncation_side);
  if (auto length = config.find("model_max_length")) {
    // A huge number means no limit.
    double value = length->number();
    if (value < 0) length->fail_expecting("a length");
    if (value <= INT32_MAX) settings_.model_max_length = int64_t(value);
  }
  settings_.clean_up_tokenization_spaces = config.boolean("clean_up_tokenization_spaces", false);
  settings_.writes_times = class_name_ == "WhisperTokenizer";
  if (auto chat = config.find("chat_template")) {
    read_template(*chat);
  } else if (auto of_processor = parsed("chat_template.json")) {
    read_template(JsonField(*of_processor, where("chat_template.json")).at("chat_template"));
  }
  if (has("chat_template.jinja")) settings_.chat_template = files_.at("chat_template.jinja");
}

// Writes the class name into the tokenizer_config.json that save_pretrained writes, because its
// folder may have no model.
void Folder::name_class(const std::string& name) {
  std::string& file = files_["tokenizer_config.json"];
  auto config = nlohmann::ordered_json::parse(file, nullptr, false);
  if (!config.is_object()) config = nlohmann::ordered_json::object();
  config["tokenizer_class"] = name;
  file = config.dump(2) + "\n";
}

std::string Folder::read_class_name() {
  std::string name = config().text("tokenizer_class", "");
  fs::path model = path_ / "config.json";
  if (name.empty() && fs::is_regular_file(model)) {
    auto parsed = parse_tokenizer_json(where("config.json"), read_file(model));
    JsonField field(parsed, where("config.json"));
    name = field.text("tokenizer_class", "");
    if (name.empty()) name = tokenizer_class_of_model(field.text("model_type", ""));
    if (!name.empty()) name_class(name);
  }
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

void Folder::read_listed_tokens() {
  auto field = [&](const std::optional<nlohmann::json>& file, const char* name) {
    return file ? std::optional(JsonField(*file, where(name))) : std::nullopt;
  };
  auto map = parsed("special_tokens_map.json"), added = parsed("added_tokens.json");
  listed_.emplace(tokenizer_class(class_name_), config(), field(map, "special_tokens_map.json"),
                  field(added, "added_tokens.json"), settings_);
  settings_.splits_special_tokens = config().boolean("split_special_tokens", false);
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

void Folder::add_template(Pipeline& pipeline, AroundText kind) const {
  JsonField config = this->config();
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
  auto found = sentencepiece_classes.find(class_name_);
  AroundText kind = found == sentencepiece_classes.end() ? AroundText() : found->second;
  // T5's sentinels follow the pieces in reverse order.
  const auto& more = settings_.additional_special_tokens;
  auto id = int64_t(pipeline.model->vocabulary().size());
  for (auto token = more.rbegin(); token != more.rend(); ++token)
    if (token->starts_with("<extra_id_") && !pipeline.model->vocabulary().id(*token))
      pipeline.added_tokens.push_back({.content = *token, .id = id++, .special = true});
  listed_->add_to(pipeline);
  add_template(pipeline, kind);
  return pipeline;
}

Pipeline Folder::vocab_and_merges() const {
  std::string name = class_name_;
  auto kind = byte_level_classes.find(name.empty() ? "GPT2Tokenizer" : name);
  require(kind != byte_level_classes.end(), where("vocab.json"), "how a ", name,
          " uses it is not known, only GPT2Tokenizer, BartTokenizer, RobertaTokenizer and "
          "CLIPTokenizer; its tokenizer.json would say");
  JsonField config = this->config();
  Pipeline pipeline =
      read_vocab_and_merges(where("vocab.json"), files_.at("vocab.json"), where("merges.txt"),
                            files_.at("merges.txt"), config.boolean("add_prefix_space", false));
  listed_->add_to(pipeline);
  add_template(pipeline, kind->second);
  return pipeline;
}

Pipeline Folder::clip() {
  Pipeline pipeline = clip_pipeline(where("vocab.json"),
                                    read_bpe_files(where("vocab.json"), files_.at("vocab.json"),
                                                   where("merges.txt"), files_.at("merges.txt")),
                                    settings_);
  listed_->add_to(pipeline);
  return pipeline;
}

Pipeline Folder::siglip() {
  JsonField config = this->config();
  std::string place = where("spiece.model");
  Pipeline pipeline = siglip_pipeline(place, read_sentencepiece(place, files_.at("spiece.model")),
                                      config.boolean("do_lower_case", true), settings_);
  listed_->add_to(pipeline);
  return pipeline;
}

Pipeline Folder::wordpiece() {
  std::string name = class_name_;
  require(
      name.empty() || wordpiece_classes.count(name) != 0, where("vocab.txt"), "how a ", name,
      " uses it is not known, only BertTokenizer, DistilBertTokenizer and ElectraTokenizer; its "
      "tokenizer.json would say");
  JsonField config = this->config();
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
  listed_->add_to(pipeline);
  add_bert_template(where("vocab.txt"), pipeline, settings_);
  return pipeline;
}

// BERT's classes set their normalizer as tokenizer_config.json says, or by their own defaults.
void Folder::set_normalizer(nlohmann::json& normalizer) const {
  if (!normalizer.is_object() || normalizer.value("type", nlohmann::json()) != "BertNormalizer")
    return;
  normalizer["lowercase"] = config().boolean("do_lower_case", true);
  auto strips = config().find("strip_accents");
  normalizer["strip_accents"] = strips ? nlohmann::json(strips->boolean()) : nlohmann::json();
  normalizer["handle_chinese_chars"] = config().boolean("tokenize_chinese_chars", true);
}

// add_prefix_space of tokenizer_config.json (default: false) overrides the pre-tokenizer's if the
// pre-tokenizer is a single step.
void Folder::set_prefix_space(nlohmann::json& tokenizer) const {
  const TokenizerClass& kind = tokenizer_class(class_name_);
  auto given = config().find("add_prefix_space");
  if (!given && kind.keeps_prefix_space) return;
  bool prefix = given && given->boolean();
  auto is = [](const nlohmann::json& step, const char* type) {
    return step.is_object() && step.value("type", nlohmann::json()) == type;
  };
  nlohmann::json& first = tokenizer["pre_tokenizer"];
  if (is(first, "ByteLevel")) first["add_prefix_space"] = prefix;
  if (prefix && kind.sets_sequences && is(first, "Sequence") && first.contains("pretokenizers"))
    for (nlohmann::json& step : first["pretokenizers"])
      if (is(step, "ByteLevel")) step["add_prefix_space"] = true;
  nlohmann::json& last = tokenizer["post_processor"];
  if (kind.sets_post_processor && (is(last, "ByteLevel") || is(last, "RobertaProcessing"))) {
    last["add_prefix_space"] = prefix;
    last["trim_offsets"] = config().boolean("trim_offsets", true);
  }
}

// Whether batches have token_type_ids and attention_mask.
void Folder::read_inputs() {
  auto known = wordpiece_classes.find(class_name_);
  settings_.returns_type_ids =
      known == wordpiece_classes.end() ? class_name_ == "DebertaV2Tokenizer" : known->second;
  JsonField config = this->config();
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
  class_name_ = read_class_name();
  if (tokenizer_class(class_name_).pads_left) settings_.padding_side = Side::left;
  // Read before the other settings of the configuration, which take precedence.
  if (auto file = parsed("tokenizer.json")) {
    if (file->is_object() && has("tokenizer_config.json")) {
      if (wordpiece_classes.count(class_name_) != 0) set_normalizer((*file)["normalizer"]);
      set_prefix_space(*file);
    }
    pipeline = read_tokenizer_json(JsonField(*file, where("tokenizer.json")), settings_);
  }
  read_config();
  read_inputs();
  if (has("tokenizer.json")) {
    listed_->add_to(pipeline);
  } else if (has("spiece.model")) {
    pipeline = class_name_ == "SiglipTokenizer" ? siglip() : sentencepiece("spiece.model");
  } else if (has("tokenizer.model")) {
    pipeline = sentencepiece("tokenizer.model");
  } else if (has("vocab.json") && has("merges.txt")) {
    pipeline = class_name_ == "CLIPTokenizer" ? clip() : vocab_and_merges();
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
    nlohmann::json parsed = parse_tokenizer_json(where, bytes);
    Pipeline pipeline = read_tokenizer_json(JsonField(parsed, where), settings);
    return make_tokenizer(std::move(pipeline), std::move(settings), std::move(files));
  }
  if (given.extension() == ".txt") return from_vocab_txt(where, bytes);
  require(given.extension() == ".model", where,
          "expected a folder, a tokenizer.json, a vocab.txt, a SentencePiece .model or a .gguf");
  return make_tokenizer(sentencepiece_pipeline(where, read_sentencepiece(where, bytes)), {},
                        std::move(files));
}

}  // namespace redco
