// The pre-tokenizers of tokenizers.

#include "pre_tokenizers.h"

#include "byte_level.h"
#include "utf8.h"

#include <algorithm>

namespace redco::text {

namespace {

// A stretch of a piece: a match of the pattern, or the text between matches.
struct Stretch {
  Range range;
  bool found;
};

// Joins the stretches of a piece into new pieces as set by the delimiter.
void join_stretches(const std::vector<Stretch>& stretches, Delimiter delimiter,
                    std::vector<Range>& pieces) {
  const Stretch* previous = nullptr;
  for (const Stretch& stretch : stretches) {
    bool joins = false;
    if (previous != nullptr && delimiter == Delimiter::merged_with_previous)
      joins = stretch.found && !previous->found;
    if (previous != nullptr && delimiter == Delimiter::contiguous)
      joins = stretch.found == previous->found;
    if (previous != nullptr && delimiter == Delimiter::merged_with_next)
      joins = previous->found && !stretch.found;
    if (joins)
      pieces.back().end = stretch.range.end;
    else if (delimiter != Delimiter::removed || !stretch.found)
      pieces.push_back(stretch.range);
    previous = &stretch;
  }
}

// Rewrites the pieces in order into a new text: `write(text, range)` appends one.
template <class Write>
void rewrite(Pieces& pieces, Write write) {
  Text text(pieces.text.tracked());
  text.reserve(pieces.text.size() * 2);
  for (Range& range : pieces.ranges) {
    size_t begin = text.size();
    write(text, range);
    range = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

}  // namespace

const char* const gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizer split(Pattern pattern, Delimiter delimiter, bool invert) {
  return [pattern = std::move(pattern), delimiter, invert](Pieces& pieces) {
    std::vector<Range> result;
    result.reserve(std::max(pieces.ranges.size(), pieces.text.size() / 4));
    std::vector<Stretch> stretches;
    for (Range range : pieces.ranges) {
      stretches.clear();
      size_t done = range.begin;
      pattern.each_match(pieces.view(range), [&](Range match) {
        match = {range.begin + match.begin, range.begin + match.end};
        if (match.begin > done) stretches.push_back({{done, match.begin}, invert});
        if (match.end > match.begin) stretches.push_back({match, !invert});
        done = match.end;
      });
      if (done < range.end) stretches.push_back({{done, range.end}, invert});
      join_stretches(stretches, delimiter, result);
    }
    pieces.ranges = std::move(result);
  };
}

PreTokenizer prefix_space() {
  return [](Pieces& pieces) {
    rewrite(pieces, [&](Text& text, Range range) {
      if (pieces.view(range).front() != ' ') text.append(" ", pieces.text.origin(range.begin));
      text.append(pieces.text, range.begin, range.end);
    });
  };
}

PreTokenizer bytes_to_characters() {
  return [](Pieces& pieces) {
    const auto& characters = byte_characters();
    rewrite(pieces, [&](Text& text, Range range) {
      for (size_t i = range.begin; i < range.end; ++i)
        text.append(characters[static_cast<unsigned char>(pieces.text.bytes()[i])],
                    pieces.text.origin(i));
    });
  };
}

PreTokenizer metaspace(std::string symbol, PrependScheme scheme, bool splits) {
  PreTokenizer cut = split(Pattern::literal(symbol), Delimiter::merged_with_next, false);
  return [symbol = std::move(symbol), scheme, splits, cut](Pieces& pieces) {
    rewrite(pieces, [&](Text& text, Range range) {
      std::string_view piece = pieces.view(range);
      // As in `tokenizers`, the first piece is the one that originates from the first character.
      bool is_first = pieces.text.tracked() ? pieces.text.origin(range.begin).begin == 0
                                            : pieces.starts_text && range.begin == 0;
      bool wanted = scheme == PrependScheme::always || (scheme == PrependScheme::first && is_first);
      if (wanted && piece.front() != ' ' && !piece.starts_with(symbol))
        text.append(symbol, pieces.text.origin(range.begin));
      size_t done = range.begin;
      for (size_t i = range.begin; i < range.end; ++i) {
        if (pieces.text.bytes()[i] != ' ') continue;
        text.append(pieces.text, done, i);
        text.append(symbol, pieces.text.origin(i));
        done = i + 1;
      }
      text.append(pieces.text, done, range.end);
    });
    if (splits) cut(pieces);
  };
}

PreTokenizer split_before_space_symbols() {
  return [](Pieces& pieces) {
    std::vector<Range> result;
    result.reserve(std::max(pieces.ranges.size(), pieces.text.size() / 6));
    for (Range range : pieces.ranges) {
      std::string_view piece = pieces.view(range);
      size_t begin = 0, at = 0;
      while ((at = piece.find(space_symbol, at)) != piece.npos) {
        if (at > begin) result.push_back({range.begin + begin, range.begin + at});
        begin = at;
        while (piece.substr(at).starts_with(space_symbol)) at += space_symbol.size();
      }
      result.push_back({range.begin + begin, range.end});
    }
    pieces.ranges = std::move(result);
  };
}

}  // namespace redco::text
