// The grammar of the JSON texts of a JSON schema.

#include "../../io/strict_json.h"
#include "json_grammar.h"

#include <redco/error.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace redco::text {

namespace {

using Node = Grammar::Node;
using Object = Json::Object;
using io::in_quotes;

constexpr int64_t most_counted = 10000;  // of minItems and its kin
constexpr int most_levels = 500;         // of schemas, with those of references

const Json* find(const Object& object, std::string_view key) {
  for (const auto& [name, value] : object)
    if (name == key) return &value;
  return nullptr;
}

// Keywords that say nothing about what fits.
const std::set<std::string>& annotations() {
  static const std::set<std::string> all{
      "$schema", "$id",        "$comment", "$defs",    "definitions", "title",  "description",
      "default", "deprecated", "examples", "readOnly", "writeOnly",   "strict", "nullable"};
  return all;
}

const std::set<std::string>& type_names() {
  static const std::set<std::string> all{"object",  "array",   "string", "number",
                                         "integer", "boolean", "null"};
  return all;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.get<Object>();
  if (type == "array") return value.get<Json::List>();
  if (type == "string") return value.get<std::string>();
  if (type == "boolean") return value.get<bool>();
  if (type == "null") return value.get<std::monostate>();
  if (type == "number") return value.get<int64_t>() || value.get<double>();
  return value.get<int64_t>();
}

}  // namespace

// Reads one schema. A place is a JSON pointer into it, "#/properties/name".
class SchemaReader {
 public:
  SchemaReader(JsonGrammar& json, std::string where, const Json& root)
      : json_(json), g_(json.grammar_), where_(std::move(where)), root_(root) {}

  Node read(const Json& schema, const std::string& place) {
    require(++level_ <= most_levels, where_, ": the schema has more than ", most_levels, " levels");
    const Node node = read_one(schema, place);
    --level_;
    return node;
  }

 private:
  Node read_one(const Json& schema, const std::string& place);

  template <class... Parts>
  [[noreturn]] void refuse(const std::string& place, const Parts&... parts) const {
    fail(where_, ": ", place, ": ", parts...);
  }

  // The members of a schema with one of these keywords; all others but annotations are refused.
  void check_keywords(const Object& schema, const std::string& place,
                      std::initializer_list<const char*> known, const std::string& beside) const;
  std::vector<std::string> types_of(const Object& schema, const std::string& place) const;
  int64_t count(const Object& schema, const char* key, int64_t standard,
                const std::string& place) const;
  Node reference(const Json& target, const std::string& place);
  Node of_type(const std::string& type, const Object& schema, const std::string& place);
  Node object(const Object& schema, const std::string& place);
  Node list(const Object& schema, const std::string& place);
  Node constants(const Json::List& values, const Object& schema, const std::string& place);
  Node constant(const Json& value);
  Node any_of(const Json& options, const std::string& place);

  JsonGrammar& json_;
  Grammar& g_;
  std::string where_;
  const Json& root_;
  std::map<std::string, Node> references_;
  int level_ = 0;
};

void SchemaReader::check_keywords(const Object& schema, const std::string& place,
                                  std::initializer_list<const char*> known,
                                  const std::string& beside) const {
  for (const auto& [key, value] : schema) {
    const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
    if (!is_known && !annotations().contains(key))
      refuse(place, "the keyword ", in_quotes(key), " is not supported", beside);
  }
}

std::vector<std::string> SchemaReader::types_of(const Object& schema,
                                                const std::string& place) const {
  const Json* given = find(schema, "type");
  if (given == nullptr) return {};
  const Json::List one{*given};
  const auto* list = given->get<Json::List>();
  std::vector<std::string> types;
  for (const Json& each : list ? *list : one) {
    const auto* name = each.get<std::string>();
    if (name == nullptr || !type_names().contains(*name))
      refuse(place,
             "type: expected object, array, string, number, integer, boolean, null or a "
             "list of them");
    types.push_back(*name);
  }
  if (types.empty()) refuse(place, "type is an empty list");
  return types;
}

int64_t SchemaReader::count(const Object& schema, const char* key, int64_t standard,
                            const std::string& place) const {
  const Json* given = find(schema, key);
  if (given == nullptr) return standard;
  const auto* number = given->get<int64_t>();
  if (number == nullptr || *number < 0 || *number > most_counted)
    refuse(place, key, ": expected a whole number from 0 to ", most_counted);
  return *number;
}

Node SchemaReader::read_one(const Json& schema, const std::string& place) {
  if (const auto* is_open = schema.get<bool>()) {
    if (!*is_open) refuse(place, "nothing fits the schema false");
    return json_.any_value();
  }
  const auto* members = schema.get<Object>();
  if (members == nullptr) refuse(place, "expected a schema, an object");
  if (const Json* target = find(*members, "$ref")) {
    check_keywords(*members, place, {"$ref"}, " beside $ref");
    return reference(*target, place);
  }
  if (const Json* options = find(*members, "anyOf")) {
    check_keywords(*members, place, {"anyOf"}, " beside anyOf");
    return any_of(*options, place + "/anyOf");
  }
  if (const Json* all = find(*members, "allOf")) {
    check_keywords(*members, place, {"allOf"}, " beside allOf");
    const auto* list = all->get<Json::List>();
    if (list == nullptr || list->size() != 1) refuse(place, "allOf: only one entry is supported");
    return read(list->front(), place + "/allOf/0");
  }
  if (const Json* values = find(*members, "enum")) {
    check_keywords(*members, place, {"enum", "type"}, " beside enum");
    const auto* list = values->get<Json::List>();
    if (list == nullptr || list->empty()) refuse(place, "enum: expected a list of values");
    return constants(*list, *members, place);
  }
  if (const Json* value = find(*members, "const")) {
    check_keywords(*members, place, {"const", "type"}, " beside const");
    return constants({*value}, *members, place);
  }
  std::vector<std::string> types = types_of(*members, place);
  if (types.empty()) {
    const bool is_object = find(*members, "properties") || find(*members, "required") ||
                           find(*members, "additionalProperties");
    const bool is_list = find(*members, "items") || find(*members, "minItems");
    if (!is_object && !is_list) {
      check_keywords(*members, place, {}, " without a type");
      return json_.any_value();
    }
    types = {is_object ? "object" : "array"};
  }
  static const std::map<std::string, std::vector<std::string>> keywords{
      {"object", {"properties", "required", "additionalProperties"}},
      {"array", {"items", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength"}}};
  for (const auto& [key, value] : *members) {
    if (key == "type" || annotations().contains(key)) continue;
    const bool is_known = std::any_of(types.begin(), types.end(), [&](const std::string& type) {
      auto own = keywords.find(type);
      return own != keywords.end() &&
             std::find(own->second.begin(), own->second.end(), key) != own->second.end();
    });
    if (!is_known) refuse(place, "the keyword ", in_quotes(key), " is not supported");
  }
  std::vector<Node> options;
  for (const std::string& type : types) options.push_back(of_type(type, *members, place));
  return g_.choice(std::move(options));
}

Node SchemaReader::reference(const Json& target, const std::string& place) {
  const auto* pointer = target.get<std::string>();
  if (pointer == nullptr || !pointer->starts_with('#'))
    refuse(place, "$ref: expected a place in this schema, such as \"#/$defs/name\"");
  auto [known, is_new] = references_.try_emplace(*pointer);
  if (!is_new) return known->second;
  const Json* found = &root_;
  for (size_t at = 1; at < pointer->size() && found;) {
    size_t end = std::min(pointer->find('/', at + 1), pointer->size());
    std::string key = pointer->substr(at + 1, end - at - 1);
    for (auto [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
      for (size_t i = 0; (i = key.find(from, i)) != std::string::npos; ++i) key.replace(i, 2, to);
    const auto* members = (*pointer)[at] == '/' ? found->get<Object>() : nullptr;
    found = members ? find(*members, key) : nullptr;
    at = end;
  }
  if (found == nullptr) refuse(place, "$ref: ", in_quotes(*pointer), " is not in this schema");
  const Node node = known->second = g_.reserve();
  g_.complete(node, read(*found, *pointer));
  return node;
}

Node SchemaReader::any_of(const Json& options, const std::string& place) {
  const auto* list = options.get<Json::List>();
  if (list == nullptr || list->empty()) refuse(place, "expected a list of schemas");
  std::vector<Node> nodes;
  for (size_t i = 0; i < list->size(); ++i)
    nodes.push_back(read((*list)[i], place + "/" + std::to_string(i)));
  return g_.choice(std::move(nodes));
}

Node SchemaReader::of_type(const std::string& type, const Object& schema,
                           const std::string& place) {
  if (type == "object") return object(schema, place);
  if (type == "array") return list(schema, place);
  if (type == "number") return json_.number_;
  if (type == "integer") return json_.integer_;
  if (type == "boolean") return g_.one_of({"true", "false"});
  if (type == "null") return g_.literal("null");
  const int64_t least = count(schema, "minLength", 0, place);
  const int64_t most = count(schema, "maxLength", Grammar::unlimited, place);
  if (most < least) refuse(place, "maxLength is less than minLength");
  return least == 0 && most == Grammar::unlimited ? json_.string_ : json_.string(least, most);
}

Node SchemaReader::list(const Object& schema, const std::string& place) {
  const int64_t least = count(schema, "minItems", 0, place);
  const int64_t most = count(schema, "maxItems", Grammar::unlimited, place);
  if (most < least) refuse(place, "maxItems is less than minItems");
  const Json* items = find(schema, "items");
  return json_.list_of(items ? read(*items, place + "/items") : json_.any_value(), least, most);
}

Node SchemaReader::object(const Object& schema, const std::string& place) {
  std::set<std::string> required;
  if (const Json* given = find(schema, "required")) {
    const auto* names = given->get<Json::List>();
    if (names == nullptr) refuse(place, "required: expected a list of names");
    for (const Json& each : *names) {
      const auto* name = each.get<std::string>();
      if (name == nullptr) refuse(place, "required: expected a list of names");
      required.insert(*name);
    }
  }
  const Json* further = find(schema, "additionalProperties");
  const Json* given = find(schema, "properties");
  const auto* properties = given ? given->get<Object>() : nullptr;
  if (given != nullptr && properties == nullptr) refuse(place, "properties: expected an object");
  const bool is_closed = further != nullptr && further->get<bool>() && !*further->get<bool>();
  const bool has_names = properties != nullptr && (!properties->empty() || further == nullptr);
  if (!has_names && !is_closed) {
    if (!required.empty()) refuse(place, "required has names without properties");
    return json_.map_of(further ? read(*further, place + "/additionalProperties")
                                : json_.any_value());
  }
  std::vector<std::pair<Node, bool>> members;  // and whether each must be there
  if (properties != nullptr)
    for (const auto& [name, value] : *properties)
      members.emplace_back(g_.sequence({constant(Json(name)), json_.colon_,
                                        read(value, place + "/properties/" + name)}),
                           required.erase(name) > 0);
  if (!required.empty())
    refuse(place, "required: ", in_quotes(*required.begin()), " is not in properties");
  // From the last member on: a member and what follows it, and what may follow an earlier one.
  Node rest = g_.choice({}), after = json_.blanks();
  bool may_end = true;
  for (size_t i = members.size(); i-- > 0;) {
    const auto [member, is_required] = members[i];
    const Node own = g_.sequence({member, after});
    rest = is_required ? own : g_.choice({own, rest});
    may_end = may_end && !is_required;
    const Node next = g_.sequence({json_.comma_, rest});
    after = may_end ? g_.choice({next, json_.blanks()}) : next;
  }
  const Node all = g_.sequence({json_.blanks(), may_end ? g_.optional(rest) : rest});
  return json_.enclosed("{", all, "}");
}

Node SchemaReader::constants(const Json::List& values, const Object& schema,
                             const std::string& place) {
  const std::vector<std::string> types = types_of(schema, place);
  std::vector<std::string> texts;
  std::vector<Node> nodes;
  for (const Json& value : values) {
    const bool fits = types.empty() ||
                      std::any_of(types.begin(), types.end(),
                                  [&](const std::string& type) { return has_type(value, type); });
    if (!fits) continue;
    if (value.get<Object>() || value.get<Json::List>())
      nodes.push_back(constant(value));
    else
      texts.push_back(write_json(where_ + ": ", value));
  }
  if (!texts.empty()) nodes.push_back(g_.one_of(std::move(texts)));
  if (nodes.empty()) refuse(place, "no value has the type");
  return g_.choice(std::move(nodes));
}

Node SchemaReader::constant(const Json& value) {
  const auto* members = value.get<Object>();
  const auto* list = value.get<Json::List>();
  if (members == nullptr && list == nullptr) return g_.literal(write_json(where_ + ": ", value));
  std::vector<Node> nodes{json_.blanks()};
  auto add = [&](Node node) {
    if (nodes.size() > 1) nodes.push_back(json_.comma_);
    nodes.push_back(node);
  };
  if (members != nullptr)
    for (const auto& [name, each] : *members)
      add(g_.sequence({constant(Json(name)), json_.colon_, constant(each)}));
  else
    for (const Json& each : *list) add(constant(each));
  if (nodes.size() > 1) nodes.push_back(json_.blanks());
  return json_.enclosed(members ? "{" : "[", g_.sequence(std::move(nodes)), members ? "}" : "]");
}

Node JsonGrammar::of_schema(const std::string& where, const Json& schema) {
  const Node node = SchemaReader(*this, where, schema).read(schema, "#");
  require(grammar_.prune(node), where, ": no finite text fits the schema");
  return node;
}

}  // namespace redco::text
