// The grammar of the JSON texts of a JSON schema: conjunctions of schemas and choices.

#include "../../io/strict_json.h"
#include "schema_reader.h"

#include <redco/error.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace redco::text {

namespace {

using Node = Grammar::Node;
using Object = Json::Object;
using io::in_quotes;

constexpr int most_levels = 500;  // of nested schemas, references included

// Keywords, with the type of the values that each constrains; "" means all types.
const std::map<std::string, std::string, std::less<>>& keywords() {
  static const std::map<std::string, std::string, std::less<>> all{
      {"type", ""},
      {"enum", ""},
      {"const", ""},
      {"anyOf", ""},
      {"oneOf", ""},
      {"allOf", ""},
      {"$ref", ""},
      {"format", ""},
      {"properties", "object"},
      {"required", "object"},
      {"additionalProperties", "object"},
      {"patternProperties", "object"},
      {"propertyNames", "object"},
      {"minProperties", "object"},
      {"maxProperties", "object"},
      {"items", "array"},
      {"prefixItems", "array"},
      {"additionalItems", "array"},
      {"minItems", "array"},
      {"maxItems", "array"},
      {"uniqueItems", "array"},
      {"minLength", "string"},
      {"maxLength", "string"},
      {"pattern", "string"},
      {"minimum", "number"},
      {"maximum", "number"},
      {"exclusiveMinimum", "number"},
      {"exclusiveMaximum", "number"},
      {"multipleOf", "number"},
  };
  return all;
}

// Keywords that do not constrain values.
const std::set<std::string, std::less<>>& annotations() {
  static const std::set<std::string, std::less<>> all{
      "$schema", "$id",      "$comment", "$defs",         "definitions",     "title",
      "default", "examples", "readOnly", "writeOnly",     "deprecated",      "description",
      "strict",  "nullable", "example",  "discriminator", "contentEncoding", "contentMediaType"};
  return all;
}

// Percent signs of a URI's fragment, then ~0 and ~1 of a JSON pointer.
std::string decoded(std::string key) {
  for (size_t i = 0; (i = key.find('%', i)) != std::string::npos; ++i) {
    char* end = nullptr;
    const std::string digits = key.substr(i + 1, 2);
    const long byte = std::strtol(digits.c_str(), &end, 16);
    if (digits.size() == 2 && *end == '\0') key.replace(i, 3, 1, char(byte));
  }
  for (auto [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
    for (size_t i = 0; (i = key.find(from, i)) != std::string::npos; ++i) key.replace(i, 2, to);
  return key;
}

// Of two keywords, the value of the first must not be greater than that of the second.
constexpr std::pair<const char*, const char*> ordered[] = {{"minLength", "maxLength"},
                                                           {"minItems", "maxItems"},
                                                           {"minProperties", "maxProperties"},
                                                           {"minimum", "maximum"}};

}  // namespace

const Json* find(const Object& object, std::string_view key) {
  for (const auto& [name, value] : object)
    if (name == key) return &value;
  return nullptr;
}

SchemaReader::SchemaReader(JsonGrammar& json, std::string where, const Json& root,
                           std::shared_ptr<Known> known)
    : json_(json),
      g_(json.grammar_),
      where_(std::move(where)),
      root_(root),
      known_(std::move(known)) {
  known_->places[&root] = "#";
}

Node SchemaReader::read_root() { return read({{&root_, false}}); }

std::string SchemaReader::impossible_place(const std::vector<bool>& has_text) const {
  for (const auto& [node, place] : done_)
    if (!has_text[node]) return place;
  return "#";
}

void SchemaReader::put_place(const Json* schema, const std::string& parent,
                             const std::string& name) {
  known_->places.try_emplace(schema, parent + "/" + name);
}

void SchemaReader::check(const Object& schema, const std::string& place) {
  std::set<std::string> types;
  if (const Json* given = find(schema, "type")) {
    const Json::List one{*given};
    const auto* list = given->get<Json::List>();
    for (const Json& each : list ? *list : one) {
      static const std::set<std::string> known{"object",  "array",   "string", "number",
                                               "integer", "boolean", "null"};
      const auto* name = each.get<std::string>();
      if (name == nullptr || !known.contains(*name))
        refuse(place,
               "type: expected object, array, string, number, integer, boolean, null or a "
               "list of them");
      types.insert(*name == "integer" ? "number" : *name);
    }
    if (types.empty()) refuse(place, "type is an empty list");
  }
  for (const auto& [key, value] : schema) {
    if (annotations().contains(key)) continue;
    const auto found = keywords().find(key);
    if (found == keywords().end())
      refuse(place, "the keyword ", in_quotes(key), " is not supported");
    if (!found->second.empty() && !types.empty() && !types.contains(found->second))
      refuse(place, "the keyword ", in_quotes(key), " has no effect: it is about values of type ",
             found->second, ", which `type` excludes");
    const auto* is_unique = key == "uniqueItems" ? value.get<bool>() : nullptr;
    if (key == "uniqueItems" && (is_unique == nullptr || *is_unique))
      refuse(place, "the keyword 'uniqueItems' is supported only with the value false");
  }
  for (const auto& [least, most] : ordered) {
    const Json *low = find(schema, least), *high = find(schema, most);
    if (low == nullptr || high == nullptr) continue;
    const auto first = Decimal::of(*low), last = Decimal::of(*high);
    if (first && last && last->compare(*first) < 0) refuse(place, most, " is less than ", least);
  }
}

const Json& SchemaReader::target_of(const Json& reference, const std::string& place) {
  const auto* pointer = reference.get<std::string>();
  if (pointer == nullptr || !pointer->starts_with('#'))
    refuse(place, "$ref: expected a place in this schema, such as \"#/$defs/name\"");
  const Json* found = &root_;
  for (size_t at = 1; at < pointer->size() && found;) {
    const size_t end = std::min(pointer->find('/', at + 1), pointer->size());
    const std::string key = decoded(pointer->substr(at + 1, end - at - 1));
    const bool is_key = (*pointer)[at] == '/';
    if (const auto* list = is_key ? found->get<Json::List>() : nullptr) {
      char* rest = nullptr;
      const size_t index = std::strtoul(key.c_str(), &rest, 10);
      found = !key.empty() && *rest == '\0' && index < list->size() ? &(*list)[index] : nullptr;
    } else {
      const auto* members = is_key ? found->get<Object>() : nullptr;
      found = members ? find(*members, key) : nullptr;
    }
    at = end;
  }
  if (found == nullptr) refuse(place, "$ref: ", in_quotes(*pointer), " is not in this schema");
  known_->places.try_emplace(found, *pointer);
  return *found;
}

// A choice of schemas for constants of which some are objects or lists.
const Json::List* SchemaReader::options_of_values(const Json* schema, const Json::List& values) {
  auto [known, is_new] = known_->options.try_emplace(schema);
  if (!is_new) return known->second;
  auto constant = [](const Json& value) { return Json(Object{{"const", value}}); };
  Json::List scalars, options;
  for (const Json& value : values) {
    const auto* members = value.get<Object>();
    const auto* list = value.get<Json::List>();
    if (members == nullptr && list == nullptr) {
      scalars.push_back(value);
      continue;
    }
    Object option{{"type", members ? "object" : "array"}};
    if (members != nullptr) {
      Object properties;
      Json::List required;
      for (const auto& [name, each] : *members) {
        properties.emplace_back(name, constant(each));
        required.emplace_back(name);
      }
      option.emplace_back("properties", std::move(properties));
      option.emplace_back("required", std::move(required));
      option.emplace_back("additionalProperties", false);
    } else {
      Json::List items;
      for (const Json& each : *list) items.push_back(constant(each));
      const auto size = int64_t(items.size());
      option.emplace_back("prefixItems", std::move(items));
      option.emplace_back("minItems", size);
      option.emplace_back("maxItems", size);
    }
    options.emplace_back(std::move(option));
  }
  if (options.empty()) return nullptr;
  if (!scalars.empty()) options.emplace_back(Object{{"enum", std::move(scalars)}});
  known->second = known_->made.emplace_back(std::move(options)).get<Json::List>();
  return known->second;
}

// Adds a schema and those that it leads to.
void SchemaReader::add(Conjunction& all, Part part, const Parts& within) {
  const std::string& place = place_of(part.schema);
  if (const auto* is_open = part.schema->get<bool>()) {
    all.is_impossible |= !*is_open;
    return;
  }
  const auto* schema = part.schema->get<Object>();
  if (schema == nullptr) refuse(place, "expected a schema, an object");
  for (const Part& each : within)
    if (each.schema == part.schema) refuse(place, "the schema refers to itself without end");
  if (std::find(all.parts.begin(), all.parts.end(), part) != all.parts.end()) return;
  if (known_->checked.insert(part.schema).second) check(*schema, place);
  all.parts.push_back(part);
  Parts path = within;
  path.push_back(part);

  if (const Json* target = find(*schema, "$ref"))
    add(all, {&target_of(*target, place), part.is_exact}, path);
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    const Json* given = find(*schema, key);
    if (given == nullptr) continue;
    const auto* list = given->get<Json::List>();
    if (list == nullptr || list->empty()) refuse(place + "/" + key, "expected a list of schemas");
    for (size_t i = 0; i < list->size(); ++i)
      put_place(&(*list)[i], place, std::string(key) + "/" + std::to_string(i));
    const std::string_view kind = key;
    if (kind == "allOf")
      for (const Json& each : *list) add(all, {&each, part.is_exact}, path);
    else
      all.choices.push_back({list, kind == "oneOf", part.is_exact, path, place + "/" + key});
  }
  const Json* values = find(*schema, "enum");
  const auto* list = values ? values->get<Json::List>() : nullptr;
  if (values != nullptr && (list == nullptr || list->empty()))
    refuse(place, "enum: expected a list of values");
  for (const char* key : {"enum", "const"}) {
    const Json* given = find(*schema, key);
    if (given == nullptr) continue;
    const auto* options =
        options_of_values(given, key == std::string_view("enum") ? *list : Json::List{*given});
    if (options == nullptr) continue;
    for (const Json& option : *options) known_->places.try_emplace(&option, place);
    all.choices.push_back({options, false, part.is_exact, path, place});
  }
}

Node SchemaReader::read(Parts parts) {
  Parts key = parts;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  auto [known, is_new] = nodes_.try_emplace(std::move(key));
  if (!is_new) return known->second;
  const Node node = known->second = g_.reserve();
  require(++level_ <= most_levels, where_, ": the schema has more than ", most_levels, " levels");
  Conjunction all;
  for (const Part& part : parts) add(all, part, {});
  g_.complete(node, resolve(std::move(all)));
  --level_;
  if (!parts.empty()) done_.emplace_back(node, place_of(parts[0].schema));
  return node;
}

// Takes each option of the first choice that is left.
Node SchemaReader::resolve(Conjunction all) {
  if (all.is_impossible) return g_.choice({});
  if (all.choices.empty()) return resolved(all);
  const Choice choice = std::move(all.choices.front());
  all.choices.erase(all.choices.begin());
  std::vector<Node> nodes;
  for (const Json& option : *choice.options) {
    Conjunction own = all;
    add(own, {&option, choice.is_exact}, choice.within);
    if (choice.is_exclusive && !choice.is_exact && is_checked_)
      for (const Json& other : *choice.options)
        if (&other != &option) own.excluded.emplace_back(Part{&other, true}, choice.place);
    nodes.push_back(resolve(std::move(own)));
  }
  return g_.choice(std::move(nodes));
}

Node SchemaReader::resolved(const Conjunction& all) {
  for (const auto& [other, place] : all.excluded)
    if (has_text({all.parts}, other))
      refuse(place, "another option has texts in common with that of ", place_of(other.schema),
             ", but oneOf allows only texts of one: use anyOf, or give the options a required "
             "property with different constants");
  return all.parts.empty() ? json_.any_value() : values(all.parts);
}

// Whether a finite text fits all schemas of a conjunction and a further one.
bool SchemaReader::has_text(Conjunction all, Part further) {
  Grammar grammar;
  JsonGrammar json(grammar);
  SchemaReader reader(json, where_, root_, known_);
  reader.is_checked_ = false;
  reader.add(all, further, {});
  const Node node = reader.resolve(std::move(all));
  return grammar.prune()[node];
}

Node JsonGrammar::of_schema(const std::string& where, const Json& schema) {
  SchemaReader reader(*this, where, schema, std::make_shared<SchemaReader::Known>());
  const Node node = reader.read_root();
  const std::vector<bool> is_finite = grammar_.prune();
  require(is_finite[node], where, ": ", reader.impossible_place(is_finite),
          ": no finite text fits the schema");
  return node;
}

}  // namespace redco::text
