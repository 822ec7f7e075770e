// Tokenizer: encoding and decoding.

#include "readers.h"
#include "times.h"
#include "tokenizer_state.h"
#include "truncation.h"
#include "utf8.h"

#include "../io/atomic_file.h"
#include "../io/strict_json.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

namespace redco {

using namespace io;
using namespace text;

namespace {

constexpr std::array settable_roles = {"bos", "eos", "unk", "sep", "cls", "pad", "mask"};

constexpr size_t longest_text = INT32_MAX;

// Encodes one text.
class Encoder {
 public:
  Encoder(const Tokenizer::State& state, const EncodeOptions& options, WordCache* cache)
      : state_(state),
        options_(options),
        tracks_(options.with_offsets || state.pipeline.needs_origins),
        cache_(cache) {}

  Encoding encode(std::string_view given) {
    size_t characters = 0, counted = 0;
    auto character = [&](size_t position) {
      if (tracks_) characters += count_characters(given.substr(counted, position - counted));
      counted = position;
      return characters;
    };
    state_.in_given.cut(
        given,
        [&](Range range) {
          size_t first = character(range.begin);
          Text text(given.substr(range.begin, range.end - range.begin), first, tracks_);
          state_.normalize(text);
          add_normalized(std::move(text), range.begin == 0);
        },
        [&](Range range, const AddedToken& token) {
          auto begin = uint32_t(character(range.begin));
          add(token.id, given.substr(range.begin, range.end - range.begin),
              {begin, uint32_t(character(range.end))});
        });
    return std::move(result_);
  }

 private:
  void add(int64_t id, std::string_view token, Span span) {
    result_.ids.push_back(id);
    if (options_.with_tokens) result_.tokens.emplace_back(token);
    if (options_.with_offsets) result_.offsets.emplace_back(span.begin, span.end);
  }

  void add_normalized(Text text, bool starts_text) {
    state_.in_normalized.cut(
        text.bytes(),
        [&](Range range) {
          bool whole = range.begin == 0 && range.end == text.size();
          Text part(text.tracked());
          if (!whole) part.append(text, range.begin, range.end);
          add_pieces({whole ? text : std::move(part), {}, starts_text && range.begin == 0});
        },
        [&](Range range, const AddedToken& token) {
          add(token.id, std::string_view(text.bytes()).substr(range.begin, range.end - range.begin),
              text.origin(range.begin, range.end));
        });
  }

  void add_pieces(Pieces pieces) {
    pieces.ranges = {{0, pieces.text.size()}};
    for (const PreTokenizer& step : state_.pipeline.pre_tokenizers) step(pieces);
    const Model& model = *state_.pipeline.model;
    std::vector<Token> uncached;
    for (Range range : pieces.ranges) {
      std::string_view word = pieces.view(range);
      const std::vector<Token>* tokens = &uncached;
      if (cache_ != nullptr && word.size() <= WordCache::longest_word) {
        tokens = &cache_->tokens(word, model);
      } else {
        check_interrupt();
        uncached.clear();
        model.tokenize(word, uncached);
      }
      for (const Token& token : *tokens) add_token(pieces, range, token);
    }
  }

  void add_token(const Pieces& pieces, Range word, const Token& token) {
    const Model& model = *state_.pipeline.model;
    Range range{word.begin + token.begin, word.begin + token.end};
    std::string_view text;
    if (options_.with_tokens) {
      bool shown = model.shows_unknown_text() && token.id == model.unknown_id();
      text = shown ? pieces.view(range) : *model.vocabulary().token(token.id);
    }
    add(token.id, text, pieces.text.origin(range.begin, range.end));
  }

  const Tokenizer::State& state_;
  const EncodeOptions& options_;
  bool tracks_;
  WordCache* cache_;
  Encoding result_;
};

}  // namespace

Encoding Tokenizer::State::encode_text(std::string_view given, const EncodeOptions& options) const {
  require(given.size() <= longest_text, "a text of ", given.size(),
          " bytes is too long for the tokenizer: at most ", longest_text);
  std::string valid = valid_utf8(given);
  // A concurrent thread skips the cache instead of waiting.
  std::unique_lock lock(cache_mutex, std::try_to_lock);
  return Encoder(*this, options, lock.owns_lock() ? &cache : nullptr).encode(valid);
}

std::vector<Template::Piece> Tokenizer::State::pieces_for(size_t n_texts, bool with_special) const {
  std::vector<Template::Piece> pieces;
  if (const auto& around = pipeline.post_processor.around) {
    pieces = n_texts == 1 ? around->single : around->pair;
    if (!with_special) std::erase_if(pieces, [](const auto& piece) { return !piece.is_text; });
    return pieces;
  }
  for (int i = 0; i < int(n_texts); ++i)
    pieces.push_back({.is_text = true, .sequence = i, .ids = {}, .tokens = {}, .type_id = i});
  return pieces;
}

Encoding Tokenizer::State::encode(std::vector<Encoding> texts, const EncodeOptions& options) const {
  auto pieces = pieces_for(texts.size(), options.add_special_tokens);
  for (const Template::Piece& piece : pieces)
    require(!piece.is_text || size_t(piece.sequence) < texts.size(),
            "the tokenizer's template for one text has a second");
  std::vector<std::vector<Encoding>> parts;
  if (options.max_length) {
    auto n_special = int64_t(n_added(pieces));
    require(*options.max_length >= n_special, "max_length is ", *options.max_length,
            ", and the tokenizer adds ", n_special, " special tokens");
    parts = truncate(std::move(texts), size_t(*options.max_length - n_special),
                     options.truncation_side.value_or(settings.truncation_side), options);
  } else {
    for (Encoding& text : texts) parts.push_back({std::move(text)});
  }
  for (auto& of_text : parts)
    for (Encoding& part : of_text)
      for (PostProcessor::Trim trim : pipeline.post_processor.trims)
        trim_offsets(part, trim.add_prefix_space);
  bool is_pair = parts.size() == 2;
  auto filled = [&](size_t first, size_t second) {
    std::vector<const Encoding*> chosen = {&parts[0][first]};
    if (is_pair) chosen.push_back(&parts[1][second]);
    return fill_template(pieces, chosen, options);
  };
  Encoding result = filled(0, 0);
  // All combinations, in the order of `tokenizers`.
  size_t n_second = is_pair ? parts[1].size() : 1;
  for (size_t first = 1; first < parts[0].size(); ++first)
    for (size_t second = 0; second < n_second; ++second)
      result.overflow.push_back(filled(first, second));
  for (size_t second = 1; second < n_second; ++second) result.overflow.push_back(filled(0, second));
  return result;
}

Tokenizer text::make_tokenizer(Pipeline pipeline, Settings settings,
                               std::map<std::string, std::string> files) {
  return Tokenizer(std::make_unique<Tokenizer::State>(std::move(pipeline), std::move(settings),
                                                      std::move(files)));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_json(const std::string& where, std::string_view tokenizer_json) {
  Settings settings;
  nlohmann::json parsed = parse_tokenizer_json(where, tokenizer_json);
  Pipeline pipeline = read_tokenizer_json(JsonField(parsed, where), settings);
  return make_tokenizer(std::move(pipeline), std::move(settings));
}

Tokenizer Tokenizer::from_sentencepiece(const std::string& where, std::string_view model) {
  return make_tokenizer(sentencepiece_pipeline(where, read_sentencepiece(where, model)), {});
}

Tokenizer Tokenizer::from_vocab_txt(const std::string& where, std::string_view vocab) {
  Settings settings;
  Pipeline pipeline = read_vocab_txt(where, vocab, "[UNK]", {});
  add_bert_template(where, pipeline, settings);
  return make_tokenizer(std::move(pipeline), std::move(settings));
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  EncodeOptions inner = state_->internal(options);
  std::vector<Encoding> texts;
  texts.push_back(state_->encode_text(text, inner));
  return state_->encode(std::move(texts), inner);
}

Encoding Tokenizer::encode(std::string_view text, std::string_view pair,
                           const EncodeOptions& options) const {
  EncodeOptions inner = state_->internal(options);
  std::vector<Encoding> texts;
  texts.push_back(state_->encode_text(text, inner));
  texts.push_back(state_->encode_text(pair, inner));
  return state_->encode(std::move(texts), inner);
}

BatchEncoding Tokenizer::encode_batch(const std::vector<std::string>& texts,
                                      const BatchOptions& options,
                                      const std::vector<std::string>& pairs) const {
  require(pairs.empty() || pairs.size() == texts.size(), "there are ", texts.size(), " texts and ",
          pairs.size(), " to pair with them");
  std::vector<Encoding> rows;
  std::vector<int64_t> text_of_row;
  rows.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    rows.push_back(pairs.empty() ? encode(texts[i], options.encode)
                                 : encode(texts[i], pairs[i], options.encode));
    std::vector<Encoding> overflow = std::move(rows.back().overflow);
    std::move(overflow.begin(), overflow.end(), std::back_inserter(rows));
    text_of_row.resize(rows.size(), int64_t(i));
  }
  size_t length = 0;
  for (const Encoding& row : rows) length = std::max(length, row.ids.size());
  if (options.padding == Padding::max_length) {
    auto wanted = options.padded_length ? options.padded_length : model_max_length();
    require(wanted.has_value(),
            "padding to max_length needs max_length: the tokenizer's files name none");
    length = std::max(length, size_t(std::max<int64_t>(*wanted, 0)));
  }
  if (options.pad_to_multiple_of && options.padding != Padding::none) {
    require(*options.pad_to_multiple_of > 0 && *options.pad_to_multiple_of <= INT32_MAX,
            "pad_to_multiple_of is ", *options.pad_to_multiple_of, ", expected at least 1");
    auto multiple = size_t(*options.pad_to_multiple_of);
    length = (length + multiple - 1) / multiple * multiple;
  }
  int64_t pad_id = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].ids.size() == length) continue;
    require(options.padding != Padding::none, "text ", text_of_row[i] + 1, " has ",
            rows[i].ids.size(), " tokens and the longest ", length,
            ": rows of a tensor are equally long; use padding = \"longest\" or \"max_length\"");
    auto pad = special_token_id("pad");
    require(pad.has_value(),
            "padding needs a pad token, which the tokenizer's files do not name: "
            "set pad_token, for instance to the eos token");
    pad_id = *pad;
  }
  auto n_rows = int64_t(rows.size()), n_columns = int64_t(length);
  auto tensor = [&](at::IntArrayRef sizes) { return at::empty(sizes, at::kLong); };
  BatchEncoding batch;
  batch.overflow_to_sample_mapping = tensor({n_rows});
  std::copy(text_of_row.begin(), text_of_row.end(),
            batch.overflow_to_sample_mapping.data_ptr<int64_t>());
  for (at::Tensor* rows_of :
       {&batch.input_ids, &batch.attention_mask, &batch.token_type_ids, &batch.special_tokens_mask})
    *rows_of = tensor({n_rows, n_columns});
  if (options.encode.with_offsets) batch.offset_mapping = tensor({n_rows, n_columns, 2});
  Side side = options.padding_side.value_or(padding_side());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Encoding& row = rows[i];
    size_t n = row.ids.size(), first = side == Side::left ? length - n : 0;
    auto fill = [&](const at::Tensor& into, size_t width, int64_t padding, auto value) {
      int64_t* out = into.data_ptr<int64_t>() + i * length * width;
      std::fill_n(out, length * width, padding);
      for (size_t j = 0; j < n * width; ++j) out[first * width + j] = value(j);
    };
    fill(batch.input_ids, 1, pad_id, [&](size_t j) { return row.ids[j]; });
    fill(batch.attention_mask, 1, 0, [](size_t) { return 1; });
    fill(batch.token_type_ids, 1, 0, [&](size_t j) { return row.type_ids[j]; });
    fill(batch.special_tokens_mask, 1, 1, [&](size_t j) { return row.special_tokens_mask[j]; });
    if (options.encode.with_offsets)
      fill(batch.offset_mapping, 2, 0, [&](size_t j) {
        return j % 2 == 0 ? row.offsets[j / 2].first : row.offsets[j / 2].second;
      });
  }
  return batch;
}

std::vector<std::string> Tokenizer::tokens_of(const std::vector<int64_t>& ids,
                                              bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (int64_t id : ids) {
    require(id >= 0, "the token number ", id,
            " is negative; remove the -100 of ignored labels before decoding");
    auto token = id_to_token(id);
    if (token && !(skip_special_tokens && is_special(id))) tokens.push_back(std::move(*token));
  }
  return tokens;
}

bool Tokenizer::ends_inside_character(const std::vector<int64_t>& ids,
                                      const DecodeOptions& options) const {
  const auto& decoders = state_->pipeline.decoders;
  auto reader = std::find_if(decoders.begin(), decoders.end(),
                             [](const Decoder& step) { return step.bytes_of != nullptr; });
  if (reader == decoders.end()) return false;
  std::string bytes;
  for (const std::string& token : tokens_of(ids, options.skip_special_tokens))
    bytes += reader->bytes_of(token);
  return ends_with_part_of_character(bytes);
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, const DecodeOptions& options) const {
  return state_->settings.writes_times ? decode_with_times(ids, options)
                                       : decode_tokens(ids, options);
}

std::string Tokenizer::decode_with_times(std::vector<int64_t> ids,
                                         const DecodeOptions& options) const {
  // The tokens before the start of the transcript are only context.
  if (options.skip_special_tokens && !ids.empty() && ids[0] == token_to_id("<|startofprev|>"))
    ids.erase(ids.begin(), std::find(ids.begin(), ids.end(), token_to_id("<|startoftranscript|>")));
  auto last = token_to_id("<|notimestamps|>");
  if (!last) return decode_tokens(ids, options);
  // Older folders have no tokens for times.
  auto is_time = [&](int64_t id) {
    if (id <= *last) return false;
    auto token = id_to_token(id);
    return !token || is_shown_time(*token);
  };
  if (!options.decode_with_timestamps) {
    std::erase_if(ids, is_time);
    return decode_tokens(ids, options);
  }
  std::string text;
  for (const TimedPart& part : split_at_times(ids, *last + 1, is_time))
    text += part.time + decode_tokens(part.ids, options);
  return text;
}

std::string Tokenizer::decode_tokens(const std::vector<int64_t>& ids,
                                     const DecodeOptions& options) const {
  std::vector<std::string> tokens = tokens_of(ids, options.skip_special_tokens);
  std::string text;
  if (state_->pipeline.decoders.empty()) {
    for (const std::string& token : tokens) text += (text.empty() ? "" : " ") + token;
  } else {
    auto size = [&] {
      size_t n = 0;
      for (const std::string& token : tokens) n += token.size();
      return n;
    };
    size_t given = size();
    for (const Decoder& step : state_->pipeline.decoders) {
      step.apply(tokens);
      check_growth(given, size());
    }
    for (const std::string& token : tokens) text += token;
  }
  bool clean =
      options.clean_up_tokenization_spaces.value_or(state_->settings.clean_up_tokenization_spaces);
  return clean ? without_tokenization_spaces(std::move(text)) : text;
}

int64_t Tokenizer::vocab_size() const {
  return int64_t(state_->pipeline.model->vocabulary().size());
}

int64_t Tokenizer::size() const {
  auto n = int64_t(state_->pipeline.model->vocabulary().n_different());
  for (const auto& [content, token] : state_->added)
    n += !state_->pipeline.model->vocabulary().id(content).has_value();
  return n;
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  auto found = state_->added.find(token);
  if (found != state_->added.end()) return found->second.id;
  return state_->pipeline.model->vocabulary().id(token);
}

std::optional<std::string> Tokenizer::id_to_token(int64_t id) const {
  auto found = state_->added_by_id.find(id);
  if (found != state_->added_by_id.end()) return found->second;
  const std::string* token = state_->pipeline.model->vocabulary().token(id);
  return token ? std::optional(*token) : std::nullopt;
}

bool Tokenizer::is_special(int64_t id) const {
  // Compared by text, as in `tokenizers`: a vocabulary may contain a token twice.
  auto content = id_to_token(id);
  if (!content) return false;
  auto token = state_->added.find(*content);
  return token != state_->added.end() && token->second.special;
}

std::optional<std::string> Tokenizer::bytes_of(int64_t id) const {
  const auto token = id_to_token(id);
  if (!token || is_special(id)) return std::nullopt;
  if (state_->added_by_id.contains(id)) return token;
  std::vector<std::string> parts{*token};
  for (const Decoder& step : state_->pipeline.decoders) {
    if (step.bytes_of != nullptr) {
      const std::string bytes = step.bytes_of(parts[0]);
      if (bytes != parts[0]) return bytes;
      break;
    }
    step.apply(parts);
    if (parts.size() != 1) break;
  }
  // Decodes it after another token, because the first token may lose a space.
  DecodeOptions options;
  options.clean_up_tokenization_spaces = false;
  const std::string before = decode_tokens({id}, options);
  const std::string both = decode_tokens({id, id}, options);
  return both.starts_with(before) ? both.substr(before.size()) : before;
}

std::optional<std::string> Tokenizer::special_token(const std::string& role) const {
  const auto& tokens = state_->settings.special_tokens;
  auto found = tokens.find(role);
  return found == tokens.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int64_t> Tokenizer::special_token_id(const std::string& role) const {
  auto token = special_token(role);
  return token ? token_to_id(*token) : std::nullopt;
}

void Tokenizer::set_special_token(const std::string& role, const std::string& token) {
  if (std::find(settable_roles.begin(), settable_roles.end(), role) == settable_roles.end())
    fail("a tokenizer has no special token '", role, "'");
  auto id = token_to_id(token);
  require(id.has_value(), "the token '", token,
          "' is not in the vocabulary: choose one that is, or add it with add_special_tokens");
  if (!is_special(*id)) state_->add({{.content = token, .special = true}});
  std::string& named = state_->settings.special_tokens[role];
  state_->is_changed |= named != token;
  named = token;
}

int64_t Tokenizer::add_tokens(const std::vector<NewToken>& tokens) {
  std::vector<AddedToken> added;
  for (const NewToken& token : tokens) {
    require(valid_utf8(token.content) == token.content, "the token ", in_quotes(token.content),
            " is not UTF-8");
    added.push_back({.content = token.content,
                     .special = token.special,
                     .single_word = token.single_word,
                     .lstrip = token.lstrip,
                     .rstrip = token.rstrip,
                     .normalized = token.normalized.value_or(!token.special)});
  }
  return state_->add(added);
}

const std::vector<std::string>& Tokenizer::additional_special_tokens() const {
  return state_->settings.additional_special_tokens;
}

void Tokenizer::set_additional_special_tokens(std::vector<std::string> tokens) {
  for (const std::string& token : tokens) {
    auto id = token_to_id(token);
    require(id.has_value(), "the token '", token,
            "' is not in the vocabulary: choose one that is, or add it with add_special_tokens");
    if (!is_special(*id)) state_->add({{.content = token, .special = true}});
  }
  state_->is_changed |= state_->settings.additional_special_tokens != tokens;
  state_->settings.additional_special_tokens = std::move(tokens);
}

const Settings& Tokenizer::settings() const { return state_->settings; }

Side Tokenizer::padding_side() const { return state_->settings.padding_side; }
void Tokenizer::set_padding_side(Side side) { state_->settings.padding_side = side; }
Side Tokenizer::truncation_side() const { return state_->settings.truncation_side; }
void Tokenizer::set_truncation_side(Side side) { state_->settings.truncation_side = side; }
std::optional<int64_t> Tokenizer::model_max_length() const {
  return state_->settings.model_max_length;
}
bool Tokenizer::returns_type_ids() const { return state_->settings.returns_type_ids; }
bool Tokenizer::returns_mask() const { return state_->settings.returns_mask; }
const std::string& Tokenizer::chat_template() const { return state_->settings.chat_template; }
void Tokenizer::set_chat_template(std::string text) {
  state_->settings.chat_template = std::move(text);
  state_->settings.tool_template.clear();
  state_->is_changed = state_->has_new_template = true;
}

void Tokenizer::save_pretrained(const std::string& folder) const {
  require(!state_->files.empty(), "cannot save to ", folder,
          ": this tokenizer was not read from tokenizer files");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "cannot make the folder ", folder, ": ", error.message());
  auto files = state_->is_changed ? changed_files(*state_) : state_->files;
  for (const auto& [name, bytes] : files) write_file(folder + "/" + name, bytes);
  text::remove_other_files(folder, files);
}

}  // namespace redco
