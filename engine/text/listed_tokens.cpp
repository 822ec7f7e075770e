// Reads the tokens that tokenizer_config.json, special_tokens_map.json and added_tokens.json list.
#include "listed_tokens.h"

#include "readers.h"
#include "token_adder.h"

#include <algorithm>
#include <set>

namespace redco::text {

namespace {

// In the order in which `transformers` adds them.
constexpr const char* listed_roles[] = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};

int64_t check_id(const JsonField& field, int64_t id) {
  if (id < 0 || id > largest_id) field.fail_expecting("a token's number");
  return id;
}

// Reads an object. A token may be special by its role.
AddedToken read_token(const JsonField& field, bool special) {
  AddedToken token;
  token.content = field.at("content").text();
  token.special = special || field.boolean("special", false);
  token.single_word = field.boolean("single_word", false);
  token.lstrip = field.boolean("lstrip", false);
  token.rstrip = field.boolean("rstrip", false);
  token.normalized = field.boolean("normalized", !token.special);
  return token;
}

}  // namespace

ListedTokens::Special ListedTokens::read_special(const JsonField& field) {
  if (field.json().is_object()) return {.token = read_token(field, true), .is_text = false};
  return {.token = {.content = field.text(), .special = true}};
}

void ListedTokens::read_roles(const JsonField& file, const TokenizerClass& kind) {
  for (const char* role : listed_roles) {
    std::string key = std::string(role) + "_token";
    auto field = file.find(key);
    if (!field) {
      if (file.json().contains(key)) roles_.erase(role);
      continue;
    }
    Special& special = roles_[role] = read_special(*field);
    special.is_role = true;
    if (!special.is_text) continue;
    if (kind.plain_roles.count(role) != 0) special.is_text = false;
    if (key == "mask_token" && kind.mask != TokenizerClass::Mask::as_others) {
      special.is_text = false;
      special.token.lstrip = true;
      special.token.normalized = kind.mask == TokenizerClass::Mask::after_space_normalized;
    }
  }
}

void ListedTokens::read_more(const JsonField& list) {
  for (const JsonField& field : list.items()) more_.push_back(read_special(field));
}

void ListedTokens::complete_more(const TokenizerClass& kind, const JsonField& config) {
  if (kind.series == nullptr) return;
  int64_t count = kind.series->count;
  if (auto field = config.find(kind.series->key)) {
    count = field->integer();
    if (count < 0 || count > 100'000) field->fail_expecting("a count");
  }
  std::map<std::string, Special> known;
  std::vector<std::string> contents;
  for (const Special& special : more_) {
    known[special.token.content] = special;
    contents.push_back(special.token.content);
  }
  more_.clear();
  for (const std::string& content : kind.series->complete(std::move(contents), count)) {
    auto found = known.find(content);
    more_.push_back(found != known.end() ? found->second
                                         : Special{.token = {.content = content, .special = true}});
  }
}

void ListedTokens::name_tokens(Settings& settings) const {
  settings.special_tokens.clear();
  settings.additional_special_tokens.clear();
  for (const auto& [role, special] : roles_) settings.special_tokens[role] = special.token.content;
  std::set<std::string> seen;
  for (const Special& special : more_)
    if (seen.insert(special.token.content).second)
      settings.additional_special_tokens.push_back(special.token.content);
}

std::vector<ListedTokens::Special> ListedTokens::specials() const {
  std::vector<Special> all, once;
  for (const char* role : listed_roles)
    if (auto found = roles_.find(role); found != roles_.end()) all.push_back(found->second);
  all.insert(all.end(), more_.begin(), more_.end());
  std::set<std::string> seen;
  for (Special& special : all)
    if (seen.insert(special.token.content).second) once.push_back(std::move(special));
  return once;
}

void ListedTokens::read_decoder(const JsonField& listed) {
  for (const auto& [key, value] : listed.json().items()) {
    JsonField field = listed.at(key);
    bool is_number =
        !key.empty() && key.size() <= 10 && key.find_first_not_of("0123456789") == key.npos;
    if (!is_number) field.fail_expecting("a token's number as its key");
    by_id_[check_id(field, std::stoll(key))] = read_token(field, false);
  }
}

bool ListedTokens::is_named(const std::string& content) const {
  auto is_it = [&](const Special& special) { return special.token.content == content; };
  return std::any_of(more_.begin(), more_.end(), is_it) ||
         std::any_of(roles_.begin(), roles_.end(), [&](const auto& entry) {
           return entry.second.is_role && is_it(entry.second);
         });
}

void ListedTokens::read_added(const JsonField& added) {
  if (!added.json().is_object()) added.fail_expecting("an object of tokens and their numbers");
  for (const auto& [content, value] : added.json().items()) {
    JsonField id = added.at(content);
    by_id_[check_id(id, id.integer())] = {.content = content, .normalized = !is_named(content)};
  }
}

ListedTokens::ListedTokens(const TokenizerClass& kind, const JsonField& config,
                           const std::optional<JsonField>& map,
                           const std::optional<JsonField>& added, Settings& settings) {
  auto read_defaults = [&](const std::map<std::string, std::string>& tokens) {
    nlohmann::json named = nlohmann::json::object();
    for (const auto& [role, content] : tokens) named[role + "_token"] = content;
    read_roles(JsonField(named, ""), kind);
    for (auto& [role, special] : roles_) special.is_role = false;
  };
  read_defaults(settings.special_tokens);
  read_defaults(kind.special_tokens);
  read_roles(config, kind);
  if (auto more = config.find("additional_special_tokens")) read_more(*more);
  if (auto more = config.find("extra_special_tokens")) {
    // Version 5 writes a list, version 4 an object of further roles.
    if (more->json().is_array()) {
      read_more(*more);
    } else {
      for (const auto& [name, value] : more->json().items())
        more_.push_back(read_special(more->at(name)));
    }
  }
  if (auto listed = config.find("added_tokens_decoder")) {
    has_decoder_ = true;
    read_decoder(*listed);
  } else {
    if (map) {
      read_roles(*map, kind);
      if (auto more = map->find("additional_special_tokens")) read_more(*more);
    }
    if (added) read_added(*added);
  }
  complete_more(kind, config);
  name_tokens(settings);
}

void ListedTokens::add_to(Pipeline& pipeline) const {
  std::map<int64_t, AddedToken> by_id = by_id_;
  // The matching options of tokens that files name only by their text.
  std::map<std::string, AddedToken> described;
  std::set<std::string> is_added, is_special;
  for (const AddedToken& token : pipeline.added_tokens) {
    is_added.insert(token.content);
    if (!has_decoder_) described[token.content] = by_id[token.id] = token;
  }
  std::vector<Special> special = specials();
  for (const Special& each : special) is_special.insert(each.token.content);
  TokenAdder adder(pipeline);
  for (auto& [id, token] : by_id) {
    if (has_decoder_) described[token.content] = token;
    token.special |= is_special.count(token.content) != 0;
    is_added.insert(token.content);
    adder.add(token);
  }
  for (Special& each : special) {
    bool is_described = each.is_role && described.count(each.token.content) != 0;
    bool is_known = each.is_text && is_added.count(each.token.content) != 0;
    if (!is_described && !is_known) adder.add(std::move(each.token));
  }
}

}  // namespace redco::text
