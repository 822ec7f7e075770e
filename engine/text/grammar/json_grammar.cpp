// The grammar of JSON.

#include "json_grammar.h"

#include <algorithm>
#include <string_view>

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

// A character of a string: of UTF-8, or escaped. Halves of a surrogate pair come together.
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
