// Reads tokenizer.json of Hugging Face's `tokenizers`: each part of the pipeline is an object with
// a "type", or a Sequence of such objects.
#include "../io/strict_json.h"
#include "json_fields.h"
#include "readers.h"
#include "token_adder.h"
#include "utf8.h"

#include <redco/error.h>

#include <algorithm>

namespace redco::text {

using namespace io;

namespace {

template <class T>
using Reader = T (*)(const JsonField&);
template <class T>
using Readers = std::map<std::string, Reader<T>>;

// Reads an object with the reader for its type.
template <class T>
T read_by_type(const JsonField& field, const Readers<T>& readers) {
  std::string type = field.at("type").text();
  auto reader = readers.find(type);
  if (reader != readers.end()) return reader->second(field);
  std::string known;
  for (const auto& [name, read] : readers) known += (known.empty() ? "" : ", ") + name;
  fail(field.where(), "the type ", in_quotes(type), " is not supported; supported are ", known);
}

// Reads the steps of a part, which is null, one object, or a Sequence of objects under `list_key`.
template <class T>
void read_steps(const std::optional<JsonField>& field, const char* list_key,
                const Readers<std::vector<T>>& readers, std::vector<T>& steps) {
  if (!field) return;
  if (field->at("type").text() == "Sequence") {
    for (const JsonField& item : field->at(list_key).items())
      read_steps(std::optional(item), list_key, readers, steps);
    return;
  }
  for (T& step : read_by_type(*field, readers)) steps.push_back(std::move(step));
}

// Reads a single character.
std::string read_character(const JsonField& field) {
  std::string text = field.text();
  if (text.empty() || text.size() != character_size(text[0])) field.fail_expecting("a character");
  return text;
}

std::string read_space_symbol(const JsonField& field) {
  auto symbol = field.find("replacement");
  return symbol ? read_character(*symbol) : std::string(space_symbol);
}

// Reads the replacement of a match, limited in length so that text cannot grow excessively.
std::string read_replacement(const JsonField& field) {
  JsonField content = field.at("content");
  if (content.text().size() > 1000) content.fail_expecting("at most 1000 bytes");
  return content.text();
}

Pattern read_pattern(const JsonField& field) {
  if (auto text = field.find("String")) return Pattern::literal(text->text());
  JsonField regex = field.at("Regex");
  return Pattern::regex(regex.where(), regex.text());
}

// ---- normalizers ----

using Normalizers = std::vector<Normalizer>;

template <UnicodeForm form>
Normalizers read_unicode(const JsonField&) {
  return {unicode_normalization(form)};
}

const Readers<Normalizers> normalizer_readers = {
    {"NFC", read_unicode<UnicodeForm::nfc>},
    {"NFD", read_unicode<UnicodeForm::nfd>},
    {"NFKC", read_unicode<UnicodeForm::nfkc>},
    {"NFKD", read_unicode<UnicodeForm::nfkd>},
    {"StripAccents", [](const JsonField&) { return Normalizers{strip_accents()}; }},
    {"BertNormalizer",
     [](const JsonField& field) {
       BertSpec spec;
       spec.clean_text = field.boolean("clean_text", true);
       spec.spaces_around_ideographs = field.boolean("handle_chinese_chars", true);
       spec.lowercase = field.boolean("lowercase", true);
       spec.strip_accents = field.boolean("strip_accents", spec.lowercase);
       return Normalizers{bert_normalization(spec)};
     }},
    {"Lowercase", [](const JsonField&) { return Normalizers{lowercase()}; }},
    {"Prepend",
     [](const JsonField& field) { return Normalizers{prepend(field.at("prepend").text())}; }},
    {"Replace",
     [](const JsonField& field) {
       return Normalizers{replace(read_pattern(field.at("pattern")), read_replacement(field))};
     }},
    {"Strip",
     [](const JsonField& field) {
       return Normalizers{
           strip(field.boolean("strip_left", true), field.boolean("strip_right", true))};
     }},
    {"Precompiled",
     [](const JsonField& field) {
       auto map = field.find("precompiled_charsmap");
       if (!map || map->text().empty()) return Normalizers{};
       return Normalizers{precompiled(std::make_shared<const CharsMap>(
           map->where(), decode_base64(map->where(), map->text())))};
     }},
};

// ---- pre-tokenizers ----

using PreTokenizers = std::vector<PreTokenizer>;

const std::map<std::string, Delimiter> delimiters = {
    {"Removed", Delimiter::removed},
    {"Isolated", Delimiter::isolated},
    {"MergedWithPrevious", Delimiter::merged_with_previous},
    {"MergedWithNext", Delimiter::merged_with_next},
    {"Contiguous", Delimiter::contiguous},
};

template <class T>
const T& one_of(const JsonField& field, const std::map<std::string, T>& values) {
  auto found = values.find(field.text());
  if (found != values.end()) return found->second;
  std::string known = "one of";
  for (const auto& [name, value] : values) known += " " + name;
  field.fail_expecting(known);
}

PreTokenizers regex_split(const JsonField& field, const std::string& expression,
                          Delimiter delimiter) {
  return {split(Pattern::regex(field.where(), expression), delimiter, false)};
}

PrependScheme read_prepend_scheme(const JsonField& field) {
  static const std::map<std::string, PrependScheme> schemes = {{"always", PrependScheme::always},
                                                               {"first", PrependScheme::first},
                                                               {"never", PrependScheme::never}};
  // Before tokenizers 0.14 this was a boolean.
  if (auto scheme = field.find("prepend_scheme")) return one_of(*scheme, schemes);
  return field.boolean("add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
}

// Rust's \w includes the joiners, unlike Oniguruma's.
constexpr const char* whitespace_words = "[\\w\\p{Join_Control}]+|[^\\w\\s\\p{Join_Control}]+";

const Readers<PreTokenizers> pre_tokenizer_readers = {
    {"ByteLevel",
     [](const JsonField& field) {
       PreTokenizers steps;
       if (field.boolean("add_prefix_space", true)) steps.push_back(prefix_space());
       if (field.boolean("use_regex", true))
         steps.push_back(regex_split(field, gpt2_words, Delimiter::isolated)[0]);
       steps.push_back(bytes_to_characters());
       return steps;
     }},
    {"Split",
     [](const JsonField& field) {
       return PreTokenizers{split(read_pattern(field.at("pattern")),
                                  one_of(field.at("behavior"), delimiters),
                                  field.boolean("invert", false))};
     }},
    {"Digits",
     [](const JsonField& field) {
       bool individual = field.boolean("individual_digits", false);
       return regex_split(field, individual ? "\\p{N}" : "\\p{N}+", Delimiter::isolated);
     }},
    {"Punctuation",
     [](const JsonField& field) {
       auto behavior = field.find("behavior");
       return regex_split(field, "[!-/:-@\\[-`{-~\\p{P}]",
                          behavior ? one_of(*behavior, delimiters) : Delimiter::isolated);
     }},
    {"FixedLength",
     [](const JsonField& field) {
       auto given = field.find("length");
       int64_t length = given ? given->integer() : 5;
       // The largest number of repetitions in a regular expression.
       if (length < 1 || length > 65535) field.at("length").fail_expecting("a number to 65535");
       return regex_split(field, "(?s:.{1," + std::to_string(length) + "})", Delimiter::isolated);
     }},
    {"Whitespace",
     [](const JsonField& field) {
       return PreTokenizers{
           split(Pattern::regex(field.where(), whitespace_words), Delimiter::removed, true)};
     }},
    {"WhitespaceSplit",
     [](const JsonField& field) { return regex_split(field, "\\s+", Delimiter::removed); }},
    {"BertPreTokenizer", [](const JsonField&) { return PreTokenizers{bert_words()}; }},
    {"Metaspace",
     [](const JsonField& field) {
       return PreTokenizers{metaspace(read_space_symbol(field), read_prepend_scheme(field),
                                      field.boolean("split", true))};
     }},
};

// ---- models ----

int64_t read_id(const JsonField& field) {
  int64_t id = field.integer();
  if (id < 0 || id > largest_id) field.fail_expecting("a token's number");
  return id;
}

BpeOptions::Merge read_merge(const JsonField& field, const nlohmann::json& merge, size_t index) {
  auto rank = int32_t(index);
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>(), rank};
  // Before tokenizers 0.20 both were in one string.
  std::string both = merge.is_string() ? merge.get<std::string>() : "";
  size_t blank = both.find(' ');
  require(blank != both.npos && blank == both.rfind(' ') && blank > 0 && blank + 1 < both.size(),
          field.where(), "entry ", index, ": expected two tokens, [\"a\", \"b\"] or \"a b\", got ",
          excerpt(merge.dump(-1, ' ', true)));
  return {both.substr(0, blank), both.substr(blank + 1), rank};
}

std::unique_ptr<Model> read_bpe(const JsonField& field) {
  auto dropout = field.find("dropout");
  require(!dropout || dropout->number() == 0, field.where(),
          "'dropout' is not supported, expected null");
  BpeOptions options;
  options.vocabulary = read_vocabulary(field.at("vocab"));
  JsonField merges = field.at("merges");
  if (!merges.json().is_array()) merges.fail_expecting("a list");
  for (size_t i = 0; i < merges.json().size(); ++i)
    options.merges.push_back(read_merge(merges, merges.json()[i], i));
  if (auto unknown = field.find("unk_token")) options.unknown_token = unknown->text();
  options.continuing_prefix = field.text("continuing_subword_prefix", "");
  options.end_suffix = field.text("end_of_word_suffix", "");
  options.fuse_unknown = field.boolean("fuse_unk", false);
  options.byte_fallback = field.boolean("byte_fallback", false);
  options.ignore_merges = field.boolean("ignore_merges", false);
  return make_bpe(field.where(), std::move(options));
}

std::unique_ptr<Model> read_unigram(const JsonField& field) {
  UnigramOptions options;
  for (const JsonField& item : field.at("vocab").items()) {
    const auto& pair = item.json();
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number())
      item.fail_expecting("a piece and its score, [\"a\", -1.5]");
    options.pieces.push_back({pair[0].get<std::string>(), pair[1].get<double>()});
  }
  if (auto unknown = field.find("unk_id")) options.unknown_id = read_id(*unknown);
  options.byte_fallback = field.boolean("byte_fallback", false);
  return make_unigram(field.where(), std::move(options));
}

size_t read_count(const JsonField& field) {
  int64_t count = field.integer();
  if (count < 0) field.fail_expecting("a count");
  return size_t(count);
}

std::unique_ptr<Model> read_wordpiece(const JsonField& field) {
  WordPieceOptions options;
  options.vocabulary = read_vocabulary(field.at("vocab"));
  options.unknown_token = field.text("unk_token", "[UNK]");
  options.continuing_prefix = field.text("continuing_subword_prefix", "##");
  if (auto longest = field.find("max_input_chars_per_word"))
    options.longest_word = read_count(*longest);
  return make_wordpiece(std::move(options));
}

std::unique_ptr<Model> read_model(const JsonField& field) {
  static const Readers<std::unique_ptr<Model>> readers = {
      {"BPE", read_bpe}, {"Unigram", read_unigram}, {"WordPiece", read_wordpiece}};
  if (field.find("type")) return read_by_type(field, readers);
  // Files of the first versions do not have the type.
  return field.find("merges") ? read_bpe(field) : read_unigram(field);
}

// ---- post-processors ----

AddedToken read_pair(const JsonField& field) {
  auto items = field.items();
  if (items.size() != 2) field.fail_expecting("a token and its number");
  return {.content = items[0].text(), .id = read_id(items[1])};
}

std::vector<Template::Piece> read_template(const JsonField& field, const JsonField& special) {
  std::vector<Template::Piece> pieces;
  for (const JsonField& item : field.items()) {
    Template::Piece piece;
    auto sequence = item.find("Sequence");
    JsonField body = sequence ? *sequence : item.at("SpecialToken");
    int64_t type_id = body.at("type_id").integer();
    piece.type_id = type_id;
    std::string id = body.at("id").text();
    if (sequence) {
      if (id != "A" && id != "B") body.at("id").fail_expecting("A or B");
      piece.is_text = true;
      piece.sequence = id == "B";
    } else {
      JsonField token = special.at(id);
      for (const JsonField& number : token.at("ids").items()) piece.ids.push_back(read_id(number));
      for (const JsonField& name : token.at("tokens").items()) piece.tokens.push_back(name.text());
      require(piece.ids.size() == piece.tokens.size(), token.where(), "has ", piece.ids.size(),
              " ids and ", piece.tokens.size(), " tokens");
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

PostProcessor::Trim read_trim(const JsonField& field) {
  return {field.boolean("add_prefix_space", true)};
}

const Readers<PostProcessor> post_processor_readers = {
    {"ByteLevel",
     [](const JsonField& field) {
       PostProcessor result;
       if (field.boolean("trim_offsets", true)) result.trims.push_back(read_trim(field));
       return result;
     }},
    {"BertProcessing",
     [](const JsonField& field) {
       PostProcessor result;
       result.around = surround_like_bert(read_pair(field.at("cls")), read_pair(field.at("sep")));
       return result;
     }},
    {"RobertaProcessing",
     [](const JsonField& field) {
       PostProcessor result;
       if (field.boolean("trim_offsets", true)) result.trims.push_back(read_trim(field));
       AddedToken cls = read_pair(field.at("cls")), sep = read_pair(field.at("sep"));
       result.around = surround_like_roberta(cls, sep);
       return result;
     }},
    {"TemplateProcessing",
     [](const JsonField& field) {
       JsonField special = field.at("special_tokens");
       PostProcessor result;
       result.around = Template{read_template(field.at("single"), special),
                                read_template(field.at("pair"), special)};
       return result;
     }},
};

void read_post_processor(const std::optional<JsonField>& field, PostProcessor& all) {
  if (!field) return;
  if (field->at("type").text() == "Sequence") {
    for (const JsonField& item : field->at("processors").items())
      read_post_processor(std::optional(item), all);
    return;
  }
  PostProcessor one = read_by_type(*field, post_processor_readers);
  all.trims.insert(all.trims.end(), one.trims.begin(), one.trims.end());
  if (!one.around) return;
  require(!all.around, field->where(), "a second template around the text is not supported");
  all.around = std::move(one.around);
}

// ---- decoders ----

using Decoders = std::vector<Decoder>;

const Readers<Decoders> decoder_readers = {
    {"ByteLevel", [](const JsonField&) { return Decoders{decode_bytes_of_characters()}; }},
    {"Metaspace",
     [](const JsonField& field) {
       return Decoders{decode_metaspace(read_space_symbol(field),
                                        read_prepend_scheme(field) == PrependScheme::never)};
     }},
    {"Replace",
     [](const JsonField& field) {
       return Decoders{decode_replace(read_pattern(field.at("pattern")), read_replacement(field))};
     }},
    {"ByteFallback", [](const JsonField&) { return Decoders{decode_byte_fallback()}; }},
    {"Fuse", [](const JsonField&) { return Decoders{decode_fuse()}; }},
    {"Strip",
     [](const JsonField& field) {
       return Decoders{decode_strip(read_character(field.at("content")),
                                    read_count(field.at("start")), read_count(field.at("stop")))};
     }},
    {"WordPiece",
     [](const JsonField& field) {
       return Decoders{
           decode_wordpiece(field.text("prefix", "##"), field.boolean("cleanup", true))};
     }},
    {"BPEDecoder",
     [](const JsonField& field) { return Decoders{decode_suffix(field.text("suffix", "</w>"))}; }},
};

AddedToken read_added_token(const JsonField& field) {
  AddedToken token{.content = field.at("content").text(), .id = read_id(field.at("id"))};
  token.special = field.boolean("special", false);
  token.single_word = field.boolean("single_word", false);
  token.lstrip = field.boolean("lstrip", false);
  token.rstrip = field.boolean("rstrip", false);
  token.normalized = field.boolean("normalized", !token.special);
  return token;
}

// The sides that `transformers` uses if tokenizer_config.json has none.
void read_direction(const std::optional<JsonField>& part, Side& side) {
  static const std::map<std::string, Side> sides = {{"Left", Side::left}, {"Right", Side::right}};
  if (!part) return;
  if (auto direction = part->find("direction")) side = one_of(*direction, sides);
}

// Whether a step inserts its symbol only before the piece of the first character.
bool prepends_to_first(const std::optional<JsonField>& field) {
  if (!field) return false;
  std::string type = field->at("type").text();
  if (type == "Metaspace") return read_prepend_scheme(*field) == PrependScheme::first;
  if (type != "Sequence") return false;
  auto steps = field->at("pretokenizers").items();
  return std::any_of(steps.begin(), steps.end(),
                     [](const JsonField& step) { return prepends_to_first(step); });
}

}  // namespace

Vocabulary read_vocabulary(const JsonField& field) {
  if (!field.json().is_object()) field.fail_expecting("an object of tokens and their numbers");
  Vocabulary vocabulary;
  for (const auto& [token, id] : field.json().items()) {
    bool fits = id.is_number_integer() && id >= 0 && id <= largest_id;
    require(fits, field.where(), "the token ", in_quotes(token), " has the number ",
            id.dump(-1, ' ', true), ", expected one from 0 to ", largest_id);
    auto number = id.get<int64_t>();
    const std::string* other = vocabulary.token(number);
    require(other == nullptr, field.where(), "the tokens ", in_quotes(other ? *other : ""), " and ",
            in_quotes(token), " have the same number ", number);
    vocabulary.add(token, number);
  }
  return vocabulary;
}

nlohmann::json parse_tokenizer_json(const std::string& where, std::string_view text) {
  constexpr int max_depth = 64;
  return parse_json(where, text, max_depth);
}

Pipeline read_tokenizer_json(const JsonField& file, Settings& settings) {
  if (!file.find("model") && file.find("vocab") && file.find("config"))
    fail(file.where(),
         "this is a vocabulary of mistral-common (tekken.json), whose format is not supported: use "
         "the model's tokenizer.json");
  Pipeline pipeline;
  read_steps(file.find("normalizer"), "normalizers", normalizer_readers, pipeline.normalizers);
  read_steps(file.find("pre_tokenizer"), "pretokenizers", pre_tokenizer_readers,
             pipeline.pre_tokenizers);
  // Without other steps the first piece is known by its position.
  pipeline.needs_origins = prepends_to_first(file.find("pre_tokenizer")) &&
                           (file.find("normalizer") || pipeline.pre_tokenizers.size() > 1);
  pipeline.model = read_model(file.at("model"));
  read_post_processor(file.find("post_processor"), pipeline.post_processor);
  read_steps(file.find("decoder"), "decoders", decoder_readers, pipeline.decoders);
  if (auto added = file.find("added_tokens")) {
    TokenAdder adder(pipeline);
    for (const JsonField& item : added->items()) adder.add(read_added_token(item));
  }
  read_direction(file.find("truncation"), settings.truncation_side);
  auto padding = file.find("padding");
  read_direction(padding, settings.padding_side);
  if (padding)
    if (auto token = padding->find("pad_token")) settings.special_tokens["pad"] = token->text();
  return pipeline;
}

}  // namespace redco::text
