#pragma once

#include "json_grammar.h"
#include "json_numbers.h"
#include "language.h"

#include <redco/error.h>
#include <redco/json.h>

#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace redco::text {

/// Makes the grammar of a JSON schema. It reads conjunctions: sets of schemas that all hold for one
/// value. $ref and allOf add schemas to a conjunction, anyOf and oneOf make several of one, and a
/// property has the conjunction of what each schema says about it.
class SchemaReader {
 public:
  /// Facts about schemas that do not depend on where they are used.
  struct Known {
    std::map<const Json*, std::string> places;
    std::set<const Json*> checked;
    std::map<const Json*, const Json::List*> options;  ///< of an enum or const
    std::deque<Json> made;                             ///< these options
  };

  SchemaReader(JsonGrammar& json, std::string where, const Json& root,
               std::shared_ptr<Known> known);

  Grammar::Node read_root();

  /// The place of the innermost schema that no finite text fits.
  std::string impossible_place(const std::vector<bool>& has_text) const;

 private:
  /// A schema of a conjunction. The texts of an exact one are all that fit it. Those of others are
  /// what a model should write: without properties that the schema does not name.
  struct Part {
    const Json* schema;
    bool is_exact;
    auto operator<=>(const Part&) const = default;
  };
  using Parts = std::vector<Part>;

  /// An anyOf, oneOf or enum that is not yet resolved.
  struct Choice {
    const Json::List* options;
    bool is_exclusive;
    bool is_exact;
    Parts within;  ///< the schemas that lead to it
    std::string place;
  };
  struct Conjunction {
    Parts parts = {};
    std::vector<Choice> choices = {};
    std::vector<std::pair<Part, std::string>> excluded = {};  ///< and the place of their oneOf
    bool is_impossible = false;
  };

  template <class... Texts>
  [[noreturn]] void refuse(const std::string& place, const Texts&... texts) const {
    fail(where_, ": ", place, ": ", texts...);
  }

  // Conjunctions (json_schema.cpp).
  Grammar::Node read(Parts parts);
  void add(Conjunction& all, Part part, const Parts& within);
  Grammar::Node resolve(Conjunction all);
  Grammar::Node resolved(const Conjunction& all);
  bool has_text(Conjunction all, Part further);
  void check(const Json::Object& schema, const std::string& place);
  const Json& target_of(const Json& reference, const std::string& place);
  const std::string& place_of(const Json* schema) const { return known_->places.at(schema); }
  void put_place(const Json* schema, const std::string& parent, const std::string& name);
  const Json::List* options_of_values(const Json* schema, const Json::List& values);

  // The values of each type (schema_types.cpp).
  using Constants = std::vector<const Json*>;
  std::optional<Constants> constants_of(const Parts& parts) const;
  Grammar::Node values(const Parts& parts);
  Grammar::Node constants(const Constants& all, int types, const Parts& parts);
  Grammar::Node string(const Parts& parts);
  Grammar::Node list(const Parts& parts);
  Grammar::Node object(const Parts& parts);
  Numbers numbers_of(const Parts& parts, bool is_whole) const;
  std::pair<int64_t, int64_t> counts(const Parts& parts, const char* least, const char* most) const;
  /// Returns the language of the patterns and formats, if there are any.
  std::optional<Language> language_of(const Parts& parts) const;
  Language pattern(const std::string& text, const std::string& place, const char* keyword) const;

  // Objects (schema_object.cpp).
  struct Properties;
  Properties properties_of(const Parts& parts);
  Language names_of(const Parts& schemas);
  Parts property_of(const Parts& parts, const Properties& all, const std::string* name,
                    size_t matches) const;
  Grammar::Node further_property(const Parts& parts, const Properties& all);

  JsonGrammar& json_;
  Grammar& g_;
  std::string where_;
  const Json& root_;
  bool is_checked_ = true;  ///< whether options of oneOf must exclude each other
  int level_ = 0;
  std::shared_ptr<Known> known_;
  std::map<Parts, Grammar::Node> nodes_;
  std::vector<std::pair<Grammar::Node, std::string>> done_;  ///< the innermost first
};

/// The member of an object; null if it has none.
const Json* find(const Json::Object& object, std::string_view key);

}  // namespace redco::text
