#pragma once

#include "grammar.h"
#include "language.h"

#include <redco/json.h>

#include <map>
#include <string>

namespace redco::text {

/// Adds JSON to a grammar. Between tokens of JSON there may be a space, or one or two line ends and
/// up to 20 blanks. Whole numbers and fractions have at most 16 digits.
class JsonGrammar {
 public:
  explicit JsonGrammar(Grammar& grammar);

  /// The JSON texts of a JSON schema. An object has its properties in the order of the schema;
  /// others are written only where additionalProperties or patternProperties say so. Annotations
  /// are ignored. Throws Error, which begins with `where` and names the place, for a keyword that
  /// is not supported, for options of a oneOf that have texts in common, and for a schema that
  /// nothing fits.
  Grammar::Node of_schema(const std::string& where, const Json& schema);

  Grammar::Node any_value() const { return value_; }
  Grammar::Node any_object() const { return object_; }
  Grammar::Node blanks() const { return blanks_; }

 private:
  friend class SchemaReader;

  Grammar::Node digits(int64_t least, int64_t most);
  Grammar::Node character();
  /// A character of a text that has a pattern: as it is, or escaped where JSON needs that.
  Grammar::Node plain_character(const CodePoints& range);
  Grammar::Node list_of(Grammar::Node item, int64_t least, int64_t most);
  Grammar::Node map_of(Grammar::Node value);
  Grammar::Node text_of(const Language& language);
  Grammar::Node enclosed(const char* begin, Grammar::Node inner, const char* end);
  Grammar::Node string(int64_t least, int64_t most);

  Grammar& grammar_;
  Grammar::Node blanks_, comma_, colon_, character_;
  Grammar::Node string_, integer_, number_, list_, object_, value_;
  std::map<CodePoints, Grammar::Node> plain_characters_;
};

}  // namespace redco::text
