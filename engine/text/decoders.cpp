// The decoders of tokenizers.

#include "decoders.h"

#include "byte_level.h"
#include "model.h"
#include "utf8.h"

namespace redco::text {

namespace {

std::string replaced(const Pattern& pattern, const std::string& content, std::string_view text) {
  std::string result;
  size_t done = 0;
  pattern.each_match(text, [&](Range match) {
    result.append(text, done, match.begin - done).append(content);
    done = match.end;
  });
  return result.append(text, done, text.npos);
}

std::string replace_all(const std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (size_t at = 0; (at = text.find(from, done)) != text.npos; done = at + from.size())
    result.append(text, done, at - done).append(to);
  return result.append(text, done);
}

// The byte of a token such as <0xE2>, or another token's text.
std::string byte_or_text(const std::string& token) {
  auto byte = byte_of_token(token);
  return byte ? std::string(1, char(*byte)) : token;
}

// Calls `write(bytes)` for each run of byte tokens and `keep(token)` for the others.
template <class Write, class Keep>
void each_byte_run(std::vector<std::string>& tokens, Write write, Keep keep) {
  std::string bytes;
  auto flush = [&] {
    if (!bytes.empty()) write(bytes);
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (auto byte = byte_of_token(token)) {
      bytes += char(*byte);
    } else {
      flush();
      keep(token);
    }
  }
  flush();
}

}  // namespace

Decoder decode_bytes_of_characters() {
  constexpr auto bytes_of = [](const std::string& token) {
    return bytes_of_characters(token).value_or(token);
  };
  auto apply = [bytes_of](std::vector<std::string>& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of(token);
    tokens = {valid_utf8(bytes)};
  };
  return {apply, bytes_of};
}

Decoder decode_metaspace(std::string symbol, bool keeps_first) {
  Pattern pattern = Pattern::literal(std::move(symbol));
  return {[pattern, keeps_first](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(pattern, i > 0 || keeps_first ? " " : "", tokens[i]);
  }};
}

Decoder decode_replace(Pattern pattern, std::string content) {
  return {[pattern = std::move(pattern), content = std::move(content)](auto& tokens) {
    for (std::string& token : tokens) token = replaced(pattern, content, token);
  }};
}

Decoder decode_byte_fallback() {
  auto apply = [](std::vector<std::string>& tokens) {
    std::vector<std::string> result;
    each_byte_run(
        tokens,
        [&](const std::string& bytes) {
          if (valid_utf8(bytes) == bytes)
            result.push_back(bytes);
          else
            result.insert(result.end(), bytes.size(), std::string(replacement_character));
        },
        [&](std::string& token) { result.push_back(std::move(token)); });
    tokens = std::move(result);
  };
  return {apply, byte_or_text};
}

Decoder decode_fuse() {
  return {[](std::vector<std::string>& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {all};
  }};
}

Decoder decode_strip(std::string character, size_t start, size_t stop) {
  return {[character = std::move(character), start, stop](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (size_t i = 0; i < start && rest.starts_with(character); ++i)
        rest.remove_prefix(character.size());
      for (size_t i = 0; i < stop && rest.ends_with(character); ++i)
        rest.remove_suffix(character.size());
      token = std::string(rest);
    }
  }};
}

Decoder decode_suffix(std::string suffix) {
  Pattern pattern = Pattern::literal(std::move(suffix));
  return {[pattern](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(pattern, i + 1 < tokens.size() ? " " : "", tokens[i]);
  }};
}

std::string without_tokenization_spaces(std::string text) {
  constexpr std::pair<const char*, const char*> rules[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (auto [from, to] : rules) text = replace_all(text, from, to);
  return text;
}

Decoder decode_wordpiece(std::string prefix, bool cleanup) {
  return {[prefix = std::move(prefix), cleanup](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix))
        token.erase(0, prefix.size());
      else if (i > 0)
        token.insert(0, " ");
      if (cleanup) token = replace_all(without_tokenization_spaces(token), " do not", " don't");
    }
  }};
}

Decoder decode_sentencepiece(SentencePieceSurface surface) {
  Pattern symbol = Pattern::literal(std::string(space_symbol));
  auto apply = [surface = std::move(surface), symbol](std::vector<std::string>& tokens) {
    std::string text;
    bool at_start = surface.strips_first_space;
    each_byte_run(
        tokens,
        [&](const std::string& bytes) {
          for (size_t i = 0; i < bytes.size();) {
            CodePoint c = code_point_at(bytes, i);
            // Unlike `tokenizers`, one U+FFFD for each byte that does not begin a character.
            bool bad = c.value == 0xFFFD && bytes.compare(i, c.size, replacement_character) != 0;
            text += bad ? replacement_character : std::string_view(bytes).substr(i, c.size);
            i += bad ? 1 : c.size;
          }
        },
        [&](const std::string& token) {
          at_start = at_start && text.empty();
          if (token == surface.unknown_piece) {
            text += surface.unknown_surface;
            return;
          }
          std::string_view rest = token;
          if (at_start && rest.starts_with(space_symbol)) {
            rest.remove_prefix(space_symbol.size());
            at_start = surface.strips_every_space;
          }
          text += replaced(symbol, " ", rest);
        });
    tokens = {text};
  };
  return {apply, byte_or_text};
}

}  // namespace redco::text
