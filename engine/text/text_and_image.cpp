// The tokenizers of CLIP and SigLIP from files without a tokenizer.json.

#include "../io/strict_json.h"
#include "readers.h"
#include "utf8.h"

#include <redco/error.h>

#include <cstring>

namespace redco::text {

using namespace io;

namespace {

constexpr const char* clip_words = R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";
constexpr const char* end_of_word = "</w>";

// A step that works on the text as a whole, after the steps of single tokens.
Decoder strip_spaces() {
  return {[](std::vector<std::string>& tokens) {
    std::string text;
    for (const std::string& token : tokens) text += token;
    size_t begin = leading_whitespace(text), end = text.size();
    end -= trailing_whitespace(std::string_view(text).substr(begin));
    tokens = {text.substr(begin, end - begin)};
  }};
}

// Removes ASCII punctuation; each run of whitespace becomes a space, and none is left at the ends.
Normalizer siglip_normalization() {
  return [](Text& text) {
    Text result(text.tracked());
    result.reserve(text.size());
    bool is_apart = false;
    for (size_t i = 0, size = 0; i < text.size(); i += size) {
      CodePoint c = code_point_at(text.bytes(), i);
      size = c.size;
      bool is_space_symbol = std::string_view(text.bytes()).substr(i, size) == space_symbol;
      // Python's whitespace has these separators too.
      bool is_separator = c.value >= 0x1C && c.value <= 0x1F;
      if (is_whitespace(c.value) || is_separator || is_space_symbol) {
        is_apart = true;
        continue;
      }
      if (c.value < 0x80 && std::strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", int(c.value)) &&
          c.value != 0)
        continue;
      if (is_apart && !result.empty()) result.append(" ", text.origin(i));
      is_apart = false;
      result.append(text, i, i + size);
    }
    text = std::move(result);
  };
}

// The space before the first word; a text after a special token has none.
PreTokenizer first_space() {
  return [](Pieces& pieces) {
    if (!pieces.starts_text || pieces.text.empty()) return;
    Text text(pieces.text.tracked());
    text.append(space_symbol, pieces.text.origin(0));
    text.append(pieces.text, 0, pieces.text.size());
    pieces.text = std::move(text);
    pieces.ranges = {{0, pieces.text.size()}};
  };
}

// The special token of this role, which has a default in `transformers`' class.
AddedToken special(const std::string& where, const Vocabulary& vocabulary, Settings& settings,
                   const char* role, const char* by_default) {
  const std::string& content = settings.special_tokens.emplace(role, by_default).first->second;
  auto id = vocabulary.id(content);
  require(id.has_value(), where, "there is no token ", in_quotes(content), ", the ", role,
          "_token");
  return {.content = content, .id = *id, .special = true};
}

}  // namespace

Pipeline clip_pipeline(const std::string& where, BpeOptions options, Settings& settings) {
  constexpr const char* end = "<|endoftext|>";
  auto token = [&](const char* role, const char* by_default) {
    return special(where, options.vocabulary, settings, role, by_default);
  };
  AddedToken bos = token("bos", "<|startoftext|>"), eos = token("eos", end);
  options.unknown_token = token("unk", end).content;
  token("pad", end);
  options.end_suffix = end_of_word;
  Pipeline pipeline;
  BertSpec spec;
  spec.strip_accents = false;
  spec.lowercase = false;
  pipeline.normalizers = {bert_normalization(spec), unicode_normalization(UnicodeForm::nfc),
                          lowercase()};
  pipeline.pre_tokenizers = {split(Pattern::regex(where, clip_words), Delimiter::removed, true),
                             bytes_to_characters()};
  pipeline.model = make_bpe(where, std::move(options));
  pipeline.post_processor.around = surround_like_roberta(bos, eos);
  pipeline.decoders = {decode_bytes_of_characters(),
                       decode_replace(Pattern::literal(end_of_word), " "), strip_spaces()};
  pipeline.added_tokens = {bos, eos};
  return pipeline;
}

Pipeline siglip_pipeline(const std::string& where, SentencePieceModel model, bool lowercases,
                         Settings& settings) {
  model.add_dummy_prefix = false;
  Pipeline pipeline = sentencepiece_pipeline(where, model);
  pipeline.normalizers.insert(pipeline.normalizers.begin(), siglip_normalization());
  if (lowercases) pipeline.normalizers.insert(pipeline.normalizers.begin(), lowercase());
  pipeline.pre_tokenizers.push_back(first_space());
  for (auto [role, by_default] :
       {std::pair("unk", "<unk>"), std::pair("pad", "</s>"), std::pair("eos", "</s>")}) {
    AddedToken token = special(where, pipeline.model->vocabulary(), settings, role, by_default);
    token.lstrip = token.rstrip = true;
    pipeline.added_tokens.push_back(std::move(token));
  }
  pipeline.post_processor.around = surround({}, {pipeline.added_tokens.back()});
  if (!settings.model_max_length) settings.model_max_length = 64;
  return pipeline;
}

}  // namespace redco::text
