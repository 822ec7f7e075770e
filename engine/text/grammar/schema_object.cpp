// The grammar of the JSON texts of a JSON schema: objects.

#include "../../io/strict_json.h"
#include "schema_reader.h"

#include <redco/error.h>

#include <algorithm>
#include <utility>

namespace redco::text {

namespace {

using Node = Grammar::Node;
using Object = Json::Object;
using io::in_quotes;

constexpr size_t most_patterns = 6;  // each subset of them is a kind of name

}  // namespace

// The keywords about properties, from all parts.
struct SchemaReader::Properties {
  struct Pattern {
    std::string expression;
    Language language;
  };
  std::vector<std::string> names;  ///< those of `properties` and `required`, in order
  std::set<std::string> required;
  std::set<std::string> written;  ///< of the names, those of schemas that are not exact
  std::vector<Pattern> patterns;
  std::optional<Language> language;  ///< of all names, by propertyNames
  /// Whether further properties are written.
  bool is_open = false;

  void add(const std::string& name, bool is_exact) {
    if (!is_exact) written.insert(name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
};

SchemaReader::Properties SchemaReader::properties_of(const Parts& parts) {
  Properties all;
  bool has_written = false, has_further = false, has_names = false;
  Parts of_names;
  std::vector<std::pair<std::string, bool>> required;  // and whether the schema is exact
  for (const auto& [source, is_exact] : parts) {
    const Object& schema = *source->get<Object>();
    const std::string& place = place_of(source);
    has_written |= !is_exact;
    if (const Json* further = find(schema, "additionalProperties")) {
      put_place(further, place, "additionalProperties");
      has_further |= !is_exact;
    }
    for (const char* key : {"properties", "patternProperties"}) {
      const Json* given = find(schema, key);
      if (given == nullptr) continue;
      has_names |= !is_exact;
      const auto* members = given->get<Object>();
      if (members == nullptr) refuse(place, key, ": expected an object");
      for (const auto& [name, value] : *members) {
        put_place(&value, place, std::string(key) + "/" + name);
        if (std::string_view(key) == "properties")
          all.add(name, is_exact);
        else if (std::none_of(all.patterns.begin(), all.patterns.end(),
                              [&](const auto& each) { return each.expression == name; }))
          all.patterns.push_back({name, pattern(name, place, key)});
      }
      if (all.patterns.size() > most_patterns)
        refuse(place, "patternProperties: more than ", most_patterns, " patterns");
    }
    if (const Json* given = find(schema, "required")) {
      const auto* names = given->get<Json::List>();
      for (const Json& each : names ? *names : Json::List{Json()}) {
        const auto* name = each.get<std::string>();
        if (name == nullptr) refuse(place, "required: expected a list of names");
        required.emplace_back(*name, is_exact);
      }
      has_names |= !is_exact && !names->empty();
    }
    if (const Json* names = find(schema, "propertyNames")) {
      put_place(names, place, "propertyNames");
      of_names.push_back({names, is_exact});
    }
  }
  all.is_open = !has_written || has_further || !has_names;
  const bool has_properties = !all.names.empty();
  for (const auto& [name, is_exact] : required) {
    const bool is_known =
        std::find(all.names.begin(), all.names.end(), name) != all.names.end() ||
        std::any_of(all.patterns.begin(), all.patterns.end(),
                    [&, &given = name](auto& each) { return each.language.contains(given); });
    if (!is_known && !all.is_open && has_properties && is_checked_)
      refuse(place_of(parts[0].schema), "required: ", in_quotes(name), " is not in properties");
    all.add(name, is_exact);
    all.required.insert(name);
  }
  if (!of_names.empty()) all.language = names_of(of_names);
  return all;
}

// Names that fit these schemas, which are about strings.
Language SchemaReader::names_of(const Parts& schemas) {
  Conjunction all;
  for (const Part& part : schemas) add(all, part, {});
  if (all.is_impossible) return Language::of_texts({});
  if (!all.choices.empty())
    refuse(all.choices[0].place, "anyOf and oneOf are not supported in propertyNames");
  auto language = language_of(all.parts).value_or(Language::of_all());
  const auto [least, most] = counts(all.parts, "minLength", "maxLength");
  language = language & Language::of_lengths(std::min(least, most), most);
  const auto values = constants_of(all.parts);
  if (!values) return language;
  std::vector<std::string> names;
  for (const Json* value : *values)
    if (const auto* name = value->get<std::string>()) names.push_back(*name);
  return language & Language::of_texts(names);
}

// Returns the schemas of a property that matches these patterns and has this name in `properties`.
// A null name stands for all names that are not there.
SchemaReader::Parts SchemaReader::property_of(const Parts& parts, const Properties& all,
                                              const std::string* name, size_t matches) const {
  Parts found;
  for (const auto& [source, is_exact] : parts) {
    const Object& schema = *source->get<Object>();
    bool is_known = false;
    auto say = [&](const Json* given) {
      if (given == nullptr) return;
      is_known = true;
      found.push_back({given, is_exact});
    };
    const Json* named = find(schema, "properties");
    const Json* by_pattern = find(schema, "patternProperties");
    if (named && name) say(find(*named->get<Object>(), *name));
    for (size_t i = 0; by_pattern && i < all.patterns.size(); ++i)
      if (matches >> i & 1) say(find(*by_pattern->get<Object>(), all.patterns[i].expression));
    if (!is_known) say(find(schema, "additionalProperties"));
  }
  return found;
}

// A property whose name is not in `properties`.
Node SchemaReader::further_property(const Parts& parts, const Properties& all) {
  std::vector<Node> options;
  const bool is_any = all.names.empty() && all.patterns.empty() && !all.language;
  std::optional<Language> others = all.language;
  if (!all.names.empty()) {
    const Language unnamed = !Language::of_texts(all.names);
    others = others ? *others & unnamed : unnamed;
  }
  for (size_t matches = 0; matches < size_t{1} << all.patterns.size(); ++matches) {
    if (matches == 0 && !all.is_open) continue;
    Language names = others.value_or(Language::of_all());
    for (size_t i = 0; i < all.patterns.size(); ++i) {
      const Language& own = all.patterns[i].language;
      names = names & (matches >> i & 1 ? own : !own);
    }
    options.push_back(g_.sequence({is_any ? json_.string_ : json_.text_of(names), json_.colon_,
                                   read(property_of(parts, all, nullptr, matches))}));
  }
  return g_.choice(std::move(options));
}

Node SchemaReader::object(const Parts& parts) {
  const auto [least, most] = counts(parts, "minProperties", "maxProperties");
  const Properties all = properties_of(parts);
  const bool has_further = all.is_open || !all.patterns.empty();
  if (has_further && is_checked_ && least > int64_t(all.required.size()) + 1)
    refuse(place_of(parts[0].schema),
           "minProperties: more than 1 property that the schema does not require might repeat "
           "names; list them in `required`");
  std::vector<Node> members;
  for (const std::string& name : all.names) {
    size_t matches = 0;
    for (size_t i = 0; i < all.patterns.size(); ++i)
      matches |= size_t{all.patterns[i].language.contains(name)} << i;
    const bool is_allowed = (!all.language || all.language->contains(name)) &&
                            (all.is_open || matches != 0 || all.written.contains(name));
    const Node value = is_allowed ? read(property_of(parts, all, &name, matches)) : g_.choice({});
    members.push_back(
        g_.sequence({g_.literal(write_json(where_ + ": ", Json(name))), json_.colon_, value}));
  }
  const Node further = has_further ? further_property(parts, all) : g_.choice({});

  // Builds nodes from the last member backwards, by the number of members written before: `from`
  // writes at least one more member, `after` follows a member. Counts that make no difference share
  // their nodes.
  const bool is_counted = least > 1 || most != Grammar::unlimited;
  const int64_t cap = is_counted ? (most != Grammar::unlimited ? most : least) : 1;
  const auto n = members.size();
  require(size_t(cap + 1) * (n + 1) <= 200000, where_, ": ", place_of(parts[0].schema),
          ": the schema is too large");
  std::vector<Node> from(size_t(cap) + 1), after(size_t(cap) + 1);
  auto close = [&](int64_t count, bool may_end) {
    std::vector<Node> options;
    if (count < most) options.push_back(g_.sequence({json_.comma_, from[size_t(count)]}));
    if (may_end && count >= least) options.push_back(json_.blanks());
    return g_.choice(std::move(options));
  };
  for (int64_t count = 0; count <= cap; ++count) {
    const int64_t room = most == Grammar::unlimited ? most : most - count;
    const Node list =
        has_further && room > 0
            ? g_.repeat(further, std::max<int64_t>(least - count, 1), room, json_.comma_)
            : g_.choice({});
    from[size_t(count)] = g_.sequence({list, json_.blanks()});
    after[size_t(count)] = close(count, true);
  }
  bool may_end = true;
  for (size_t i = n; i-- > 0;) {
    const bool is_required = all.required.contains(all.names[i]);
    may_end = may_end && !is_required;
    for (int64_t count = 0; count <= cap; ++count) {
      const int64_t next = std::min(count + 1, cap);
      const Node own =
          count < most ? g_.sequence({members[i], after[size_t(next)]}) : g_.choice({});
      from[size_t(count)] = is_required ? own : g_.choice({own, from[size_t(count)]});
    }
    for (int64_t count = 0; count <= cap; ++count) after[size_t(count)] = close(count, may_end);
  }
  std::vector<Node> options{g_.sequence({json_.blanks(), from[0]})};
  if (may_end && least == 0) options.push_back(json_.blanks());
  return json_.enclosed("{", g_.choice(std::move(options)), "}");
}

}  // namespace redco::text
