// The grammar of JSON.

#include "json_grammar.h"

#include "../utf8.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::text {

namespace {

using Node = Grammar::Node;

Grammar::Bytes range(int first, int last) {
  Grammar::Bytes set;
  for (int byte = first; byte <= last; ++byte) set.set(size_t(byte));
  return set;
}

Grammar::Bytes any_of(std::string_view characters) {
  Grammar::Bytes set;
  for (char c : characters) set.set(static_cast<unsigned char>(c));
  return set;
}

// The UTF-8 characters from `first` to `last`, which have equally many bytes, from byte `at` on.
Node utf8(Grammar& g, const std::string& first, const std::string& last, size_t at) {
  auto bytes = [&](int low, int high) { return g.bytes(range(low, high)); };
  const int low = static_cast<unsigned char>(first[at]),
            high = static_cast<unsigned char>(last[at]);
  if (at + 1 == first.size()) return bytes(low, high);
  const std::string least(first.size(), '\x80'), most(first.size(), '\xBF');
  if (low == high) return g.sequence({bytes(low, high), utf8(g, first, last, at + 1)});
  std::vector<Node> options{g.sequence({bytes(low, low), utf8(g, first, most, at + 1)})};
  if (low + 1 < high)
    options.push_back(g.sequence({bytes(low + 1, high - 1), utf8(g, least, most, at + 1)}));
  options.push_back(g.sequence({bytes(high, high), utf8(g, least, last, at + 1)}));
  return g.choice(std::move(options));
}

// \u00XX.
std::string escaped_control(char32_t c) {
  constexpr std::string_view hex = "0123456789abcdef";
  return std::string("\\u00") + hex[c / 16] + hex[c % 16];
}

constexpr int64_t most_digits = 16, most_line_ends = 2, most_blanks = 20;

}  // namespace

JsonGrammar::JsonGrammar(Grammar& grammar) : grammar_(grammar) {
  Grammar& g = grammar_;
  const Node indent = g.repeat(g.bytes(any_of(" \t")), 0, most_blanks);
  const Node lines = g.repeat(g.literal("\n"), 1, most_line_ends);
  blanks_ = g.choice({g.empty(), g.literal(" "), g.sequence({lines, indent})});
  comma_ = g.sequence({blanks_, g.literal(","), blanks_});
  colon_ = g.sequence({blanks_, g.literal(":"), blanks_});
  character_ = character();
  string_ = string(0, Grammar::unlimited);
  const Node sign = g.optional(g.literal("-"));
  const Node whole = g.choice(
      {g.literal("0"), g.sequence({g.bytes(range('1', '9')), digits(0, most_digits - 1)})});
  integer_ = g.sequence({sign, whole});
  const Node fraction = g.sequence({g.literal("."), digits(1, most_digits)});
  const Node exponent =
      g.sequence({g.bytes(any_of("eE")), g.optional(g.bytes(any_of("+-"))), digits(1, 2)});
  number_ = g.sequence({integer_, g.optional(fraction), g.optional(exponent)});
  value_ = g.reserve();
  list_ = list_of(value_, 0, Grammar::unlimited);
  object_ = map_of(value_);
  g.complete(value_,
             g.choice({string_, number_, object_, list_, g.one_of({"true", "false", "null"})}));
}

Node JsonGrammar::digits(int64_t least, int64_t most) {
  return grammar_.repeat(grammar_.bytes(range('0', '9')), least, most);
}

// A character of a string: UTF-8, or escaped. The halves of a surrogate pair occur only together.
Node JsonGrammar::character() {
  Grammar& g = grammar_;
  const Node next = g.bytes(range(0x80, 0xBF));
  auto bytes = [&](int first, int last) { return g.bytes(range(first, last)); };
  Grammar::Bytes plain = range(0x20, 0x7F);
  plain.reset('"').reset('\\');
  const Node hex = g.bytes(any_of("0123456789abcdefABCDEF"));
  const Node d = g.bytes(any_of("dD"));
  const Node unpaired =
      g.choice({g.sequence({g.bytes(any_of("0123456789abcefABCEF")), hex, hex, hex}),
                g.sequence({d, bytes('0', '7'), hex, hex})});
  const Node pair = g.sequence({d, g.bytes(any_of("89abAB")), hex, hex, g.literal("\\u"), d,
                                g.bytes(any_of("cdefCDEF")), hex, hex});
  const Node code = g.sequence({g.literal("u"), g.choice({unpaired, pair})});
  return g.choice({
      g.bytes(plain),
      g.sequence({bytes(0xC2, 0xDF), next}),
      g.sequence({bytes(0xE0, 0xE0), bytes(0xA0, 0xBF), next}),
      g.sequence({g.bytes(range(0xE1, 0xEC) | range(0xEE, 0xEF)), next, next}),
      g.sequence({bytes(0xED, 0xED), bytes(0x80, 0x9F), next}),
      g.sequence({bytes(0xF0, 0xF0), bytes(0x90, 0xBF), next, next}),
      g.sequence({bytes(0xF1, 0xF3), next, next, next}),
      g.sequence({bytes(0xF4, 0xF4), bytes(0x80, 0x8F), next, next}),
      g.sequence({g.literal("\\"), g.choice({g.bytes(any_of("\"\\/bfnrt")), code})}),
  });
}

Node JsonGrammar::plain_character(const CodePoints& set) {
  Grammar& g = grammar_;
  std::vector<Node> options;
  Grammar::Bytes plain;
  for (char32_t c = set.first; c <= std::min<char32_t>(set.last, 0x7F); ++c) {
    static constexpr std::string_view escaped = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
    const size_t place = escaped.find(char(c));
    if (place != escaped.npos)
      options.push_back(g.literal(std::string("\\") + letters[place]));
    else if (c < 0x20)
      options.push_back(g.literal(escaped_control(c)));
    else
      plain.set(c);
  }
  if (plain.any()) options.push_back(g.bytes(plain));
  // Ranges of code points with equally many bytes in UTF-8, without surrogates.
  static constexpr CodePoints sizes[] = {
      {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, last_code_point}};
  for (const CodePoints& size : sizes) {
    const char32_t low = std::max(set.first, size.first), high = std::min(set.last, size.last);
    if (low > high) continue;
    std::string first, last;
    append_code_point(first, low);
    append_code_point(last, high);
    options.push_back(utf8(g, first, last, 0));
  }
  return g.choice(std::move(options));
}

// A node for each state of the automaton.
Node JsonGrammar::text_of(const Language& language) {
  Grammar& g = grammar_;
  std::vector<Node> nodes;
  for (size_t i = 0; i < language.states().size(); ++i) nodes.push_back(g.reserve());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& state = language.states()[i];
    std::vector<Node> options;
    for (const auto& edge : state.edges) {
      auto [known, is_new] = plain_characters_.try_emplace(edge.on, 0);
      if (is_new) known->second = plain_character(edge.on);
      options.push_back(g.sequence({known->second, nodes[edge.to]}));
    }
    if (state.is_end) options.push_back(g.empty());
    g.complete(nodes[i], g.choice(std::move(options)));
  }
  return enclosed("\"", nodes[0], "\"");
}

Node JsonGrammar::enclosed(const char* begin, Node inner, const char* end) {
  Grammar& g = grammar_;
  return g.sequence({g.literal(begin), inner, g.literal(end)});
}

Node JsonGrammar::string(int64_t least, int64_t most) {
  return enclosed("\"", grammar_.repeat(character_, least, most), "\"");
}

Node JsonGrammar::list_of(Node item, int64_t least, int64_t most) {
  Grammar& g = grammar_;
  if (most == 0) return enclosed("[", blanks_, "]");
  const Node items =
      g.sequence({blanks_, g.repeat(item, std::max<int64_t>(least, 1), most, comma_), blanks_});
  return enclosed("[", least == 0 ? g.choice({blanks_, items}) : items, "]");
}

Node JsonGrammar::map_of(Node value) {
  Grammar& g = grammar_;
  const Node member = g.sequence({string_, colon_, value});
  const Node members =
      g.sequence({blanks_, g.repeat(member, 1, Grammar::unlimited, comma_), blanks_});
  return enclosed("{", g.choice({blanks_, members}), "}");
}

}  // namespace redco::text
