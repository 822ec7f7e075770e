// Reads SentencePiece's model files: the message ModelProto of sentencepiece_model.proto.
#include "protobuf.h"
#include "readers.h"
#include "utf8.h"

#include <redco/error.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

namespace redco::text {

namespace {

using Parts = TokenizerParts;

void read_piece(const std::string& where, std::string_view message, SentencePieceModel& model) {
  std::string text;
  float score = 0;
  uint64_t type = Parts::normal;
  ProtobufFields field(where, message);
  while (field.next()) {
    if (field.number() == 1) text = field.bytes();
    if (field.number() == 2) score = field.float32();
    if (field.number() == 3) type = field.varint();
  }
  size_t index = model.pieces.size();
  require(valid_utf8(text) == text, where, "piece ", index, " is not UTF-8");
  require(type >= Parts::normal && type <= Parts::byte, where, "piece ", index, " is of the type ",
          type, ", expected 1 to 6");
  model.pieces.push_back(std::move(text));
  model.scores.push_back(score);
  model.types.push_back(int32_t(type));
}

void read_trainer_spec(const std::string& where, std::string_view message,
                       SentencePieceModel& model) {
  ProtobufFields field(where, message);
  while (field.next()) {
    if (field.number() == 3) {
      uint64_t kind = field.varint();
      require(kind == 1 || kind == 2, where, "the model type ", kind,
              " is not supported: supported are 1, Unigram, and 2, BPE");
      model.model = kind == 1 ? Parts::Model::unigram : Parts::Model::sentencepiece_bpe;
    }
    if (field.number() == 24) model.whitespace_as_suffix = field.boolean();
    if (field.number() == 35) model.byte_fallback = field.boolean();
    if (field.number() == 44) model.unknown_surface = valid_utf8(field.bytes());
  }
}

void read_normalizer_spec(const std::string& where, std::string_view message,
                          SentencePieceModel& model) {
  ProtobufFields field(where, message);
  while (field.next()) {
    if (field.number() == 2) model.charsmap = field.bytes();
    if (field.number() == 3) model.add_dummy_prefix = field.boolean();
    if (field.number() == 4) model.remove_extra_whitespaces = field.boolean();
    if (field.number() == 5) model.escape_whitespaces = field.boolean();
  }
}

bool is_in_text(int32_t type) { return type == Parts::normal || type == Parts::user_defined; }

// BPE merges the neighbours whose joint piece has the best score, on ties the leftmost pair. So
// each way to split a piece in two gives a merge with the rank of the piece's score.
std::vector<BpeOptions::Merge> merges_by_score(const SentencePieceModel& model,
                                               const Vocabulary& in_text) {
  std::vector<float> scores;
  for (size_t i = 0; i < model.pieces.size(); ++i)
    if (is_in_text(model.types[i])) scores.push_back(model.scores[i]);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<BpeOptions::Merge> merges;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.types[i] != Parts::normal) continue;
    const std::string& piece = model.pieces[i];
    auto rank = std::lower_bound(scores.begin(), scores.end(), model.scores[i], std::greater<>()) -
                scores.begin();
    for (size_t at = 1; at < piece.size(); ++at) {
      if ((piece[at] & 0xC0) == 0x80) continue;
      std::string left = piece.substr(0, at), right = piece.substr(at);
      if (in_text.id(left) && in_text.id(right))
        merges.push_back({std::move(left), std::move(right), int32_t(rank)});
    }
  }
  return merges;
}

// Longer pieces, in characters, are not split: each would give too many merges.
constexpr size_t longest_piece = 1024;

std::unique_ptr<Model> make_model(const std::string& where, const SentencePieceModel& model,
                                  std::optional<int64_t> unknown) {
  if (model.model == Parts::Model::unigram) {
    UnigramOptions options;
    for (size_t i = 0; i < model.pieces.size(); ++i)
      options.pieces.push_back({model.pieces[i], model.scores[i], is_in_text(model.types[i])});
    options.unknown_id = unknown;
    options.byte_fallback = model.byte_fallback;
    options.in_float32 = true;
    return make_unigram(where, std::move(options));
  }
  BpeOptions options;
  Vocabulary in_text;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    options.vocabulary.add(model.pieces[i], int64_t(i));
    if (is_in_text(model.types[i])) in_text.add(model.pieces[i], int64_t(i));
    require(model.pieces[i].size() <= longest_piece, where, "piece ", i, " has ",
            model.pieces[i].size(), " bytes, more than ", longest_piece);
  }
  options.merges = merges_by_score(model, in_text);
  if (unknown) options.unknown_token = model.pieces[size_t(*unknown)];
  options.byte_fallback = model.byte_fallback;
  options.fuse_unknown = true;
  options.shows_unknown_text = true;
  return make_bpe(where, std::move(options));
}

// Whether the file has tiktoken's format: lines of a token in base64 and its rank.
bool is_tiktoken(std::string_view bytes) {
  std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), bytes.size()));
  size_t blank = line.find(' ');
  if (blank == line.npos || blank == 0 || blank + 1 == line.size()) return false;
  auto is_base64 = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=';
  };
  return std::all_of(line.begin(), line.begin() + blank, is_base64) &&
         std::all_of(line.begin() + blank + 1, line.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0 || c == '\r'; });
}

}  // namespace

SentencePieceModel read_sentencepiece(const std::string& where, std::string_view bytes) {
  require(!is_tiktoken(bytes), where,
          "this is a vocabulary of tiktoken, as LLaMA 3's original files have, whose format is not "
          "supported: use the model's tokenizer.json");
  SentencePieceModel model;
  ProtobufFields field(where, bytes);
  while (field.next()) {
    if (field.number() == 1) read_piece(where, field.bytes(), model);
    if (field.number() == 2) read_trainer_spec(where, field.bytes(), model);
    if (field.number() == 3) read_normalizer_spec(where, field.bytes(), model);
  }
  require(!model.pieces.empty(), where, "there are no pieces: this is no SentencePiece model");
  return model;
}

Pipeline sentencepiece_pipeline(const std::string& where, const SentencePieceModel& model) {
  Pipeline pipeline;
  SentencePieceSpec spec;
  if (!model.charsmap.empty()) spec.map = std::make_shared<const CharsMap>(where, model.charsmap);
  spec.add_dummy_prefix = model.add_dummy_prefix;
  spec.remove_extra_whitespaces = model.remove_extra_whitespaces;
  spec.escape_whitespaces = model.escape_whitespaces;
  spec.whitespace_as_suffix = model.whitespace_as_suffix;
  std::optional<int64_t> unknown;
  Vocabulary seen;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const std::string& piece = model.pieces[i];
    auto id = int64_t(i);
    require(!piece.empty(), where, "piece ", i, " is empty");
    require(!seen.id(piece), where, "pieces ", seen.id(piece).value_or(0), " and ", i,
            " are both '", piece, "'");
    require(std::isfinite(model.scores[i]), where, "the score of piece ", i, " is not finite");
    seen.add(piece, id);
    if (model.types[i] == Parts::unknown) {
      require(!unknown, where, "pieces ", unknown.value_or(0), " and ", i, " are both unknown");
      unknown = id;
    }
    if (model.types[i] == Parts::user_defined) {
      spec.user_defined.push_back(piece);
      pipeline.normalized_tokens.push_back({.content = piece, .id = id});
    }
  }
  pipeline.normalizers = {sentencepiece_normalization(spec)};
  pipeline.model = make_model(where, model, unknown);
  SentencePieceSurface surface;
  if (unknown) surface.unknown_piece = model.pieces[size_t(*unknown)];
  surface.unknown_surface = model.unknown_surface;
  surface.strips_first_space = model.add_dummy_prefix || model.remove_extra_whitespaces;
  surface.strips_every_space = model.remove_extra_whitespaces;
  pipeline.decoders = {decode_sentencepiece(surface)};
  return pipeline;
}

}  // namespace redco::text
