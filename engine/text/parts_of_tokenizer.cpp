// Takes tokenizers apart: the inverse of Tokenizer::from_parts.
#include "gguf_words.h"
#include "readers.h"
#include "tokenizer_state.h"
#include "utf8.h"

#include <redco/error.h>

#include <algorithm>
#include <set>

namespace redco {

using namespace text;
using nlohmann::json;

namespace {

using Parts = TokenizerParts;

// Words of many kinds, which tokenizers cut in different ways.
const std::string probe =
    "Hello WORLD iPhone HelloWorld don't DON'T we'LL it's 'tis a 1 12 123 1234 12345 1234567 "
    "x1y22z "
    "  two   spaces\ttab\n\nlines\r\n \n  end! !! ?!... (a) [b] {c} $5 +1 a+b <x>=|y| ~`^ "
    "naïve Ünïcode Ǆ ß ªº русский текст ΑΒγ 日本語 テスト。中文，测试！한국어 ㄱㄴ العربية ไทยภาษา "
    "हिन्दी "
    "e\u0301 😀👍 \u3000 x\u00a0y «q» “z” — – a/b\\c http://a.b/c?d=1&e #tag @me foo_bar "
    "A's I'm \u4e00\u4e8c3\u56db  \n";

// Whether a part of tokenizer.json has a step of this type.
bool has_type(const json& value, const std::string& type) {
  if (value.is_object()) {
    auto found = value.find("type");
    if (found != value.end() && *found == type) return true;
  }
  if (!value.is_structured()) return false;
  return std::ranges::any_of(value, [&](const json& part) { return has_type(part, type); });
}

// Sets the token of an id. Ids without a token get a placeholder that occurs in no text.
void set_token(Parts& parts, int64_t id, const std::string& token, int32_t type) {
  require(id >= 0 && id <= largest_id, "the tokenizer has a token of number ", id);
  while (int64_t(parts.tokens.size()) <= id) {
    parts.tokens.push_back("[PAD" + std::to_string(parts.tokens.size()) + "]");
    parts.types.push_back(Parts::unused);
  }
  parts.tokens[size_t(id)] = token;
  parts.types[size_t(id)] = type;
}

// The two tokens of a merge in tokenizer.json: "left right" or ["left", "right"].
std::pair<std::string, std::string> merge_of(const json& merge) {
  if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto text = merge.get<std::string>();
  const size_t blank = text.find(' ');
  require(blank != text.npos, "a merge of tokenizer.json has no blank");
  return {text.substr(0, blank), text.substr(blank + 1)};
}

Parts parts_of_json(const std::string& text) {
  const json file = parse_tokenizer_json("tokenizer.json: ", text);
  const json& model = file.at("model");
  const bool is_bpe = model.contains("merges");
  require(is_bpe && model.value("continuing_subword_prefix", json("")).empty() &&
              model.value("end_of_word_suffix", json("")).empty(),
          "its model is not BPE");
  Parts parts;
  const bool byte_level = has_type(file.value("decoder", json()), "ByteLevel") ||
                          has_type(file.value("pre_tokenizer", json()), "ByteLevel");
  parts.model = byte_level ? Parts::Model::byte_level_bpe : Parts::Model::sentencepiece_bpe;
  for (const auto& [token, id] : model.at("vocab").items())
    set_token(parts, id.get<int64_t>(), token,
              !byte_level && byte_of_token(token) ? Parts::byte : Parts::normal);
  std::map<std::string, size_t> ids;
  for (size_t id = 0; id < parts.tokens.size(); ++id) ids[parts.tokens[id]] = id;
  const json& merges = model.at("merges");
  // SentencePiece orders merges by the scores of the merged tokens.
  if (!byte_level) parts.scores.assign(parts.tokens.size(), -1e9f);
  std::set<size_t> scored;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = merge_of(merges[rank]);
    if (byte_level) {
      parts.merges.push_back(left + " " + right);
    } else if (auto made = ids.find(left + right);
               made != ids.end() && scored.insert(made->second).second) {
      parts.scores[made->second] = -float(rank);
    }
  }
  if (const json unknown = model.value("unk_token", json()); unknown.is_string())
    if (auto found = ids.find(unknown.get<std::string>()); found != ids.end())
      parts.unk_id = int64_t(found->second);
  return parts;
}

Parts parts_of_sentencepiece(const std::string& bytes) {
  SentencePieceModel model = read_sentencepiece("", bytes);
  require(model.escape_whitespaces && !model.whitespace_as_suffix,
          "it marks whitespace in another way");
  Parts parts;
  parts.model = model.model;
  parts.tokens = model.pieces;
  parts.scores = model.scores;
  parts.types = model.types;
  parts.precompiled_charsmap = model.charsmap;
  parts.add_space_prefix = model.add_dummy_prefix;
  parts.remove_extra_whitespaces = model.remove_extra_whitespaces;
  auto unknown = std::ranges::find(parts.types, int32_t{Parts::unknown});
  if (unknown != parts.types.end()) parts.unk_id = unknown - parts.types.begin();
  return parts;
}

Parts parts_of_vocab_and_merges(const std::string& vocab, const std::string& merges) {
  BpeOptions options = read_bpe_files("vocab.json: ", vocab, "merges.txt: ", merges);
  Parts parts;
  for (const auto& [token, id] : options.vocabulary.ids())
    set_token(parts, id, token, Parts::normal);
  for (const BpeOptions::Merge& merge : options.merges)
    parts.merges.push_back(merge.left + " " + merge.right);
  return parts;
}

Parts parts_of_files(const std::map<std::string, std::string>& files) {
  for (const auto& [name, bytes] : files)
    if (name == "tokenizer.json" || (files.size() == 1 && name.ends_with(".json")))
      return parts_of_json(bytes);
  for (const auto& [name, bytes] : files)
    if (name.ends_with(".model")) return parts_of_sentencepiece(bytes);
  auto vocab = files.find("vocab.json"), merges = files.find("merges.txt");
  require(vocab != files.end() && merges != files.end(),
          "it has neither tokenizer.json, a SentencePiece model, nor vocab.json with merges.txt");
  return parts_of_vocab_and_merges(vocab->second, merges->second);
}

std::vector<std::string> words_of(const std::vector<PreTokenizer>& steps) {
  Pieces pieces{Text(probe, 0, false), {{0, probe.size()}}, true};
  for (const PreTokenizer& step : steps) step(pieces);
  std::vector<std::string> words;
  for (const Range& range : pieces.ranges) words.emplace_back(pieces.view(range));
  return words;
}

// The name of the rule by which byte-level BPE splits texts into words.
std::string name_of_words(const std::vector<PreTokenizer>& steps, bool ignore_merges) {
  const std::vector<std::string> expected = words_of(steps);
  for (const auto& [name, words] : all_gguf_words()) {
    if (words.ignore_merges != ignore_merges) continue;
    std::vector<PreTokenizer> own;
    for (const std::string& expression : words.expressions)
      own.push_back(split(Pattern::regex(name, expression), Delimiter::isolated, false));
    own.push_back(bytes_to_characters());
    if (words_of(own) == expected) return name;
  }
  fail("llama.cpp has no name for the way in which it cuts texts into words");
}

bool ignores_merges(const std::map<std::string, std::string>& files) {
  auto found = files.find("tokenizer.json");
  if (found == files.end()) return false;
  const json model = parse_tokenizer_json("tokenizer.json: ", found->second).at("model");
  const json flag = model.value("ignore_merges", json(false));
  return flag.is_boolean() && flag.get<bool>();
}

std::vector<int64_t> ids_of(const Tokenizer& tokenizer, const std::string& text,
                            bool with_special) {
  EncodeOptions options;
  options.add_special_tokens = with_special;
  return tokenizer.encode(text, options).ids;
}

// Sets the tokens at the beginning and at the end of texts.
void set_ends(Parts& parts, const Tokenizer& tokenizer) {
  const std::vector<int64_t> inner = ids_of(tokenizer, "a", false);
  const std::vector<int64_t> whole = ids_of(tokenizer, "a", true);
  const auto begin = std::search(whole.begin(), whole.end(), inner.begin(), inner.end());
  const auto end = begin == whole.end() ? begin : begin + ptrdiff_t(inner.size());
  const std::vector<int64_t> before(whole.begin(), begin), after(end, whole.end());
  const auto is_only = [](const std::vector<int64_t>& ids, std::optional<int64_t> id) {
    return ids.empty() || (id && ids == std::vector{*id});
  };
  require(is_only(before, parts.bos_id) && is_only(after, parts.eos_id),
          "it puts other tokens than bos_token and eos_token around texts");
  parts.add_bos = !before.empty();
  parts.add_eos = !after.empty();
}

bool cuts_alike(const Tokenizer& a, const Tokenizer& b) {
  return std::ranges::all_of(std::vector<std::string>{probe, " x", "x"}, [&](const auto& text) {
    return ids_of(a, text, true) == ids_of(b, text, true);
  });
}

}  // namespace

TokenizerParts Tokenizer::parts() const {
  try {
    const bool is_of_files = !state_->parts;
    const auto files = state_->is_changed && is_of_files ? changed_files(*state_) : state_->files;
    Parts parts = is_of_files ? parts_of_files(files) : *state_->parts;
    for (const AddedToken& token : state_->pipeline.added_tokens) {
      const bool is_known = token.id < int64_t(parts.types.size()) &&
                            parts.types[size_t(token.id)] != Parts::normal &&
                            parts.types[size_t(token.id)] != Parts::unused;
      if (is_known) continue;
      const bool is_unknown = parts.unk_id == token.id;
      set_token(parts, token.id, token.content,
                is_unknown      ? Parts::unknown
                : token.special ? Parts::control
                                : Parts::user_defined);
    }
    if (parts.model != Parts::Model::byte_level_bpe)
      parts.scores.resize(parts.tokens.size(), -1e9f);
    parts.bos_id = special_token_id("bos");
    parts.eos_id = special_token_id("eos");
    parts.pad_id = special_token_id("pad");
    if (auto unknown = special_token_id("unk")) parts.unk_id = unknown;
    parts.chat_template = chat_template();
    set_ends(parts, *this);
    if (!is_of_files) return parts;
    if (parts.model == Parts::Model::byte_level_bpe) {
      parts.pre_tokenizer = name_of_words(state_->pipeline.pre_tokenizers, ignores_merges(files));
      if (cuts_alike(from_parts("", parts), *this)) return parts;
    } else {
      for (bool has_prefix : {parts.add_space_prefix, !parts.add_space_prefix}) {
        parts.add_space_prefix = has_prefix;
        if (cuts_alike(from_parts("", parts), *this)) return parts;
      }
    }
    fail("its steps have no place there");
  } catch (const std::exception& error) {
    fail("the tokenizer cannot be written in the form of GGUF: ", error.what());
  }
}

}  // namespace redco
