#pragma once

#include "grammar.h"

#include <redco/json.h>

#include <string>

namespace redco::text {

/// Adds JSON to a grammar. Between tokens of JSON there may be a space, or one or two line ends and
/// up to 20 blanks. Whole numbers and fractions have at most 16 digits.
class JsonGrammar {
 public:
  explicit JsonGrammar(Grammar& grammar);

  /// The JSON texts of a JSON schema. Supported are type, properties, required,
  /// additionalProperties, items, minItems, maxItems, minLength, maxLength, enum, const, anyOf,
  /// allOf with one entry, and $ref within the schema. An object has its properties in the order of
  /// the schema, and no others. Annotations are ignored. Throws Error, which begins with `where`
  /// and names the place, for any other keyword and for a schema that nothing fits.
  Grammar::Node of_schema(const std::string& where, const Json& schema);

  Grammar::Node any_value() const { return value_; }
  Grammar::Node any_object() const { return object_; }
  Grammar::Node blanks() const { return blanks_; }

 private:
  friend class SchemaReader;

  Grammar::Node digits(int64_t least, int64_t most);
  Grammar::Node character();
  Grammar::Node list_of(Grammar::Node item, int64_t least, int64_t most);
  Grammar::Node map_of(Grammar::Node value);
  Grammar::Node enclosed(const char* begin, Grammar::Node inner, const char* end);
  Grammar::Node string(int64_t least, int64_t most);

  Grammar& grammar_;
  Grammar::Node blanks_, comma_, colon_, character_;
  Grammar::Node string_, integer_, number_, list_, object_, value_;
};

}  // namespace redco::text
