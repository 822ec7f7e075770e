// The grammar of the JSON texts of a JSON schema: values of each type.

#include "../../io/strict_json.h"
#include "schema_reader.h"

#include <redco/error.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

namespace redco::text {

namespace {

using Node = Grammar::Node;
using Object = Json::Object;
using io::in_quotes;

constexpr int64_t most_counted = 10000;  // of minItems and its kin

enum Types { null = 1, boolean = 2, text = 4, whole = 8, fraction = 16, array = 32, object_ = 64 };
constexpr int number = whole | fraction, all_types = 127;

int type_of(const std::string& name) {
  static const std::map<std::string, int> types{
      {"null", null},     {"boolean", boolean}, {"string", text},   {"integer", whole},
      {"number", number}, {"array", array},     {"object", object_}};
  return types.at(name);
}

int type_of(const Json& value) {
  if (value.get<std::monostate>()) return null;
  if (value.get<bool>()) return boolean;
  if (value.get<std::string>()) return text;
  if (const auto decimal = Decimal::of(value)) return decimal->fraction.empty() ? whole : fraction;
  return value.get<Object>() ? object_ : array;
}

bool are_equal(const Json& a, const Json& b) {
  const auto left = Decimal::of(a), right = Decimal::of(b);
  if (left && right) return left->compare(*right) == 0;
  if (const auto* string = a.get<std::string>())
    return b.get<std::string>() && *b.get<std::string>() == *string;
  if (const auto* flag = a.get<bool>()) return b.get<bool>() && *b.get<bool>() == *flag;
  return a.get<std::monostate>() && b.get<std::monostate>();
}

// The types that the keywords of a schema constrain.
int types_of_keywords(const Object& schema) {
  static const std::pair<std::string_view, int> types[] = {{"properties", object_},
                                                           {"required", object_},
                                                           {"additionalProperties", object_},
                                                           {"patternProperties", object_},
                                                           {"propertyNames", object_},
                                                           {"minProperties", object_},
                                                           {"maxProperties", object_},
                                                           {"items", array},
                                                           {"prefixItems", array},
                                                           {"minItems", array},
                                                           {"maxItems", array},
                                                           {"minLength", text},
                                                           {"maxLength", text},
                                                           {"pattern", text},
                                                           {"format", text},
                                                           {"minimum", number},
                                                           {"maximum", number},
                                                           {"exclusiveMinimum", number},
                                                           {"exclusiveMaximum", number},
                                                           {"multipleOf", number}};
  int found = 0;
  for (const auto& [key, type] : types)
    if (find(schema, key)) found |= type;
  return found;
}

const Object& members_of(const Json* schema) { return *schema->get<Object>(); }

int64_t count_of(const Json& given, const char* key, const std::string& where) {
  const auto value = Decimal::of(given);
  const bool is_count = value && !value->is_negative && value->fraction.empty();
  require(is_count, where, key, ": expected a whole number from 0 on");
  return value->whole.size() > 15 ? std::numeric_limits<int64_t>::max() : std::stoll(value->whole);
}

}  // namespace

// Returns the constants that all schemas with enum or const share. Constants that are objects or
// lists are options of a choice instead.
std::optional<SchemaReader::Constants> SchemaReader::constants_of(const Parts& parts) const {
  std::optional<Constants> found;
  for (const Part& part : parts)
    for (const char* key : {"enum", "const"}) {
      const Json* given = find(members_of(part.schema), key);
      if (given == nullptr || known_->options.at(given) != nullptr) continue;
      Constants own;
      const bool is_list = std::string_view(key) == "enum";
      if (is_list)
        for (const Json& each : *given->get<Json::List>()) own.push_back(&each);
      else
        own.push_back(given);
      if (found)
        std::erase_if(own, [&](const Json* value) {
          return std::none_of(found->begin(), found->end(),
                              [&](const Json* other) { return are_equal(*value, *other); });
        });
      found = std::move(own);
    }
  return found;
}

// The values that fit all of these schemas.
Node SchemaReader::values(const Parts& parts) {
  int types = all_types, written = 0;
  bool has_type = false;
  for (const Part& part : parts) {
    const Object& schema = members_of(part.schema);
    if (!part.is_exact) written |= types_of_keywords(schema);
    const Json* given = find(schema, "type");
    if (given == nullptr) continue;
    has_type |= !part.is_exact;
    const Json::List one{*given};
    const auto* list = given->get<Json::List>();
    int own = 0;
    for (const Json& each : list ? *list : one) own |= type_of(*each.get<std::string>());
    types &= own;
  }
  const auto given = constants_of(parts);
  // A schema without a type allows the types that its keywords constrain.
  if (!has_type && !given && written != 0) types &= written;
  if (given) return constants(*given, types, parts);
  std::vector<Node> options;
  if (types & null) options.push_back(g_.literal("null"));
  if (types & boolean) options.push_back(g_.one_of({"true", "false"}));
  if (types & text) options.push_back(string(parts));
  if (types & whole) {
    const bool is_whole = (types & fraction) == 0;
    const Numbers numbers = numbers_of(parts, is_whole);
    options.push_back(numbers.is_limited() ? numbers.texts(g_)
                      : is_whole           ? json_.integer_
                                           : json_.number_);
  }
  if (types & array) options.push_back(list(parts));
  if (types & object_) options.push_back(object(parts));
  return g_.choice(std::move(options));
}

// Returns the node of the constants that fit.
Node SchemaReader::constants(const Constants& all, int types, const Parts& parts) {
  const Numbers numbers = numbers_of(parts, false);
  const auto language = language_of(parts);
  const auto [least, most] = counts(parts, "minLength", "maxLength");
  const Language lengths = Language::of_lengths(least, most);
  std::vector<std::string> texts;
  for (const Json* value : all) {
    if ((type_of(*value) & types) == 0) continue;
    const auto* own = value->get<std::string>();
    if (own && !(lengths.contains(*own) && (!language || language->contains(*own)))) continue;
    const auto decimal = Decimal::of(*value);
    if (decimal && !numbers.contains(*decimal)) continue;
    texts.push_back(write_json(where_ + ": ", *value));
  }
  return texts.empty() ? g_.choice({}) : g_.one_of(std::move(texts));
}

std::pair<int64_t, int64_t> SchemaReader::counts(const Parts& parts, const char* least,
                                                 const char* most) const {
  int64_t low = 0, high = Grammar::unlimited;
  for (const Part& part : parts) {
    const std::string where = where_ + ": " + place_of(part.schema) + ": ";
    const Object& schema = members_of(part.schema);
    if (const Json* given = find(schema, least))
      low = std::max(low, count_of(*given, least, where));
    if (const Json* given = find(schema, most))
      high = std::min(high, count_of(*given, most, where));
    require(low <= most_counted && (high == Grammar::unlimited || high <= most_counted), where,
            low > most_counted ? least : most, ": expected a whole number from 0 to ",
            most_counted);
  }
  return {low, high};
}

Language SchemaReader::pattern(const std::string& expression, const std::string& place,
                               const char* keyword) const {
  try {
    return language_of_pattern(expression);
  } catch (const Error& error) {
    refuse(place, keyword, " ", in_quotes(expression), ": ", error.what());
  }
}

std::optional<Language> SchemaReader::language_of(const Parts& parts) const {
  // Formats that do not constrain texts, some because they are about numbers.
  static const std::set<std::string, std::less<>> open{"password",  "binary",         "path",
                                                       "file-path", "directory-path", "int32",
                                                       "int64",     "float",          "double"};
  std::optional<Language> all;
  auto keep = [&](Language own, const std::string& place) {
    try {
      all = all ? *all & own : std::move(own);
    } catch (const Error& error) {
      refuse(place, "the patterns of the text: ", error.what());
    }
  };
  for (const Part& part : parts) {
    const std::string& place = place_of(part.schema);
    for (const char* key : {"pattern", "format"}) {
      const Json* given = find(members_of(part.schema), key);
      if (given == nullptr) continue;
      const auto* value = given->get<std::string>();
      if (value == nullptr) refuse(place, key, ": expected a string");
      const bool is_format = std::string_view(key) == "format";
      if (is_format && open.contains(*value)) continue;
      const std::string expression = is_format ? pattern_of_format(*value) : *value;
      if (is_format && expression.empty())
        refuse(place, "the format ", in_quotes(*value), " is not supported");
      keep(pattern(expression, place, key), place);
    }
  }
  return all;
}

Node SchemaReader::string(const Parts& parts) {
  const auto [least, most] = counts(parts, "minLength", "maxLength");
  const bool is_limited = least > 0 || most != Grammar::unlimited;
  if (most < least) return g_.choice({});
  const auto language = language_of(parts);
  if (!language) return is_limited ? json_.string(least, most) : json_.string_;
  if (!is_limited) return json_.text_of(*language);
  try {
    return json_.text_of(*language & Language::of_lengths(least, most));
  } catch (const Error& error) {
    refuse(place_of(parts[0].schema), "a pattern with minLength or maxLength: ", error.what());
  }
}

Numbers SchemaReader::numbers_of(const Parts& parts, bool is_whole) const {
  Numbers all;
  all.is_whole = is_whole;
  for (const Part& part : parts) {
    const Object& schema = members_of(part.schema);
    auto value = [&](const char* key) {
      const Json* given = find(schema, key);
      const auto found = given ? Decimal::of(*given) : std::nullopt;
      if (given && !found) refuse(place_of(part.schema), key, ": expected a number");
      return found;
    };
    for (const auto& [key, is_exclusive] :
         {std::pair("minimum", false), {"exclusiveMinimum", true}})
      if (const auto bound = value(key)) all.raise_least({*bound, is_exclusive});
    for (const auto& [key, is_exclusive] :
         {std::pair("maximum", false), {"exclusiveMaximum", true}})
      if (const auto bound = value(key)) all.lower_most({*bound, is_exclusive});
    if (const auto unit = value("multipleOf")) {
      if (unit->is_negative || unit->is_zero())
        refuse(place_of(part.schema), "multipleOf: expected a number greater than 0");
      if (!all.keep_multiples(*unit))
        refuse(place_of(part.schema),
               "multipleOf: only numbers with the digits of 1 to 10000 are supported");
    }
    const Json* format = find(schema, "format");
    if (format && format->get<std::string>() && *format->get<std::string>() == "int32") {
      all.raise_least({*Decimal::of(Json(int64_t{-2147483648})), false});
      all.lower_most({*Decimal::of(Json(int64_t{2147483647})), false});
    }
  }
  return all;
}

Node SchemaReader::list(const Parts& parts) {
  const auto [least, most] = counts(parts, "minItems", "maxItems");
  if (most < least) return g_.choice({});
  std::vector<Parts> first;  // what each schema says of the first items
  Parts rest;                // and of all others
  struct Own {
    const Json::List* first = nullptr;
    const Json* rest = nullptr;
  };
  std::vector<Own> all(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const Object& schema = members_of(parts[i].schema);
    const std::string& place = place_of(parts[i].schema);
    const char *list_key = "prefixItems", *rest_key = "items";
    // Before 2020, items was a list, and additionalItems were the others.
    if (const Json* items = find(schema, "items"); items && items->get<Json::List>())
      std::tie(list_key, rest_key) = std::pair("items", "additionalItems");
    if (const Json* given = find(schema, list_key)) {
      all[i].first = given->get<Json::List>();
      if (all[i].first == nullptr) refuse(place, list_key, ": expected a list of schemas");
      for (size_t at = 0; at < all[i].first->size(); ++at)
        put_place(&(*all[i].first)[at], place, list_key + ("/" + std::to_string(at)));
      first.resize(std::max(first.size(), all[i].first->size()));
    }
    all[i].rest = find(schema, rest_key);
    if (all[i].rest == nullptr) continue;
    put_place(all[i].rest, place, rest_key);
    rest.push_back({all[i].rest, parts[i].is_exact});
  }
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t at = 0; at < first.size(); ++at) {
      const bool is_first = all[i].first && at < all[i].first->size();
      const Json* own = is_first ? &(*all[i].first)[at] : all[i].rest;
      if (own != nullptr) first[at].push_back({own, parts[i].is_exact});
    }
  const auto n = int64_t(first.size());
  if (n == 0) return json_.list_of(read(rest), least, most);
  // Builds nodes from the last item backwards: `from` writes an item and everything after it,
  // `after` writes everything after the previous item.
  Node from = g_.choice({}), after = json_.blanks();
  if (most > n) {
    const int64_t further = most == Grammar::unlimited ? most : most - n;
    from =
        g_.sequence({g_.repeat(read(rest), std::max<int64_t>(least - n, 1), further, json_.comma_),
                     json_.blanks()});
  }
  for (int64_t at = n; at >= 0; --at) {
    const Node more =
        at < most ? g_.sequence({at > 0 ? json_.comma_ : json_.blanks(), from}) : g_.choice({});
    after = at >= least ? g_.choice({more, json_.blanks()}) : more;
    if (at > 0) from = g_.sequence({read(first[size_t(at - 1)]), after});
  }
  return json_.enclosed("[", after, "]");
}

}  // namespace redco::text
