// Builds byte-level BPE from GPT-2's vocab.json with merges.txt, or from the parts in GGUF files.
#include "../io/strict_json.h"
#include "gguf_words.h"
#include "json_fields.h"
#include "readers.h"

#include <redco/error.h>

namespace redco::text {

using namespace io;

namespace {

// Parses a line of merges.txt, or an entry of a GGUF file's list.
BpeOptions::Merge parse_merge(const std::string& where, const std::string& line, size_t rank) {
  size_t blank = line.find(' ');
  require(blank != line.npos && blank == line.rfind(' ') && blank > 0 && blank + 1 < line.size(),
          where, "merge ", rank, ": expected two tokens and a blank between them, got ",
          in_quotes(line));
  return {line.substr(0, blank), line.substr(blank + 1), int32_t(rank)};
}

}  // namespace

Pipeline byte_level_pipeline(std::unique_ptr<Model> model, const std::string& where,
                             const std::vector<std::string>& words, bool add_prefix_space) {
  Pipeline pipeline;
  if (add_prefix_space) pipeline.pre_tokenizers.push_back(prefix_space());
  for (const std::string& expression : words)
    pipeline.pre_tokenizers.push_back(
        split(Pattern::regex(where, expression), Delimiter::isolated, false));
  pipeline.pre_tokenizers.push_back(bytes_to_characters());
  pipeline.model = std::move(model);
  pipeline.decoders = {decode_bytes_of_characters()};
  return pipeline;
}

BpeOptions read_bpe_files(const std::string& where, std::string_view vocab,
                          const std::string& merges_where, std::string_view merges) {
  BpeOptions options;
  nlohmann::json parsed = parse_json(where, vocab, 2);
  options.vocabulary = read_vocabulary(JsonField(parsed, where));
  for (size_t begin = 0; begin < merges.size();) {
    size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string line(merges.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    bool is_header = begin == 0 && line.starts_with("#version");
    if (!line.empty() && !is_header)
      options.merges.push_back(parse_merge(merges_where, line, options.merges.size()));
    begin = end + 1;
  }
  return options;
}

Pipeline read_vocab_and_merges(const std::string& where, std::string_view vocab,
                               const std::string& merges_where, std::string_view merges,
                               bool add_prefix_space) {
  BpeOptions options = read_bpe_files(where, vocab, merges_where, merges);
  return byte_level_pipeline(make_bpe(merges_where, std::move(options)), where, {gpt2_words},
                             add_prefix_space);
}

Pipeline byte_level_pipeline(const std::string& where, const TokenizerParts& parts) {
  const GgufWords& words = gguf_words(where, parts.pre_tokenizer);
  BpeOptions options;
  for (size_t i = 0; i < parts.tokens.size(); ++i) {
    auto other = options.vocabulary.id(parts.tokens[i]);
    require(!other, where, "tokens ", other.value_or(0), " and ", i, " are both ",
            in_quotes(parts.tokens[i]));
    options.vocabulary.add(parts.tokens[i], int64_t(i));
  }
  for (const std::string& merge : parts.merges)
    options.merges.push_back(parse_merge(where, merge, options.merges.size()));
  options.ignore_merges = words.ignore_merges;
  return byte_level_pipeline(make_bpe(where, std::move(options)), where, words.expressions, false);
}

}  // namespace redco::text
