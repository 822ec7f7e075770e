// Options from defaults, TOML files and command-line arguments.

#define TOML_HEADER_ONLY 1
#include <redco/options.h>

#include "../checkpoint/workdir_lock.h"
#include "atomic_file.h"
#include "output_file.h"

#include <redco/detail/notices.h>
#include <redco/error.h>

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

namespace redco {

using namespace io;

namespace {

template <class... Args>
[[noreturn]] void misuse(const Args&... args) {
  std::ostringstream text;
  (text << ... << args);
  throw UsageError(text.str());
}

bool is_number(const Tree& tree) { return tree.is<int64_t>() || tree.is<double>(); }

// The expected value of an option with this default, for messages.
std::string expected(const Tree& value) {
  if (value.is<bool>()) return "true or false";
  if (is_number(value)) return "a number";
  if (value.is<std::string>()) return "a string";
  if (value.is<Tree::List>()) return "a list (1,2,3 on the command line)";
  return "a table";
}

std::string underscored(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

Tree& option(Tree& options, const std::string& key, const std::string& where) {
  auto& entries = options.as<Tree::Dict>();
  auto found = entries.find(underscored(key));
  if (found != entries.end()) return found->second;
  std::set<std::string> names;
  for (const auto& [name, value] : entries) names.insert(name);
  std::string near = nearest(underscored(key), names);
  std::ostringstream known;
  for (const std::string& name : names) known << (known.tellp() > 0 ? ", " : "") << name;
  misuse(where, ": there is no option '", key, "'",
         near.empty() ? "; there are: " + known.str() +
                            ". Options of redco-lua itself precede the script's name"
                      : "; did you mean '" + near + "'?");
}

// ---- the command line ----

std::optional<Tree> parse_number(const std::string& text) {
  const char* end = text.data() + text.size();
  int64_t integer = 0;
  auto whole = std::from_chars(text.data(), end, integer);
  if (whole.ec == std::errc() && whole.ptr == end) return Tree(integer);
  double number = 0;
  auto real = std::from_chars(text.data(), end, number);
  if (real.ec == std::errc() && real.ptr == end) return Tree(number);
  return std::nullopt;
}

// Parses `text` as a value of the kind of `like`; none if it is invalid.
std::optional<Tree> parse(const std::string& text, const Tree& like) {
  if (like.is<std::string>()) return Tree(text);
  if (is_number(like)) return parse_number(text);
  if (like.is<bool>()) {
    if (text == "true" || text == "false") return Tree(text == "true");
    return std::nullopt;
  }
  if (!like.is<Tree::List>()) return std::nullopt;
  const auto& defaults = like.as<Tree::List>();
  Tree element = defaults.empty() ? Tree("") : defaults.front();
  Tree::List list;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::optional<Tree> value = parse(part, element);
    if (!value) return std::nullopt;
    list.push_back(*std::move(value));
  }
  return Tree(std::move(list));
}

void apply_argument(Tree& options, const std::string& argument) {
  if (argument.rfind("--", 0) != 0 || argument.size() == 2)
    misuse("unexpected argument '", argument, "'; options are written --name=value");
  size_t equals = argument.find('=');
  std::string key = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  if (argument == "--help" && !options.as<Tree::Dict>().count("help")) {
    misuse(format_options(options));
  }
  Tree* table = &options;
  for (size_t dot; (dot = key.find('.')) != std::string::npos; key.erase(0, dot + 1)) {
    table = &option(*table, key.substr(0, dot), argument);
    if (!table->is<Tree::Dict>())
      misuse(argument, ": '", key.substr(0, dot), "' is not a table of options");
  }
  if (equals != std::string::npos) {
    Tree& value = option(*table, key, argument);
    std::optional<Tree> parsed = parse(argument.substr(equals + 1), value);
    if (!parsed) misuse(argument, ": expected ", expected(value));
    value = *std::move(parsed);
    return;
  }
  const auto& entries = table->as<Tree::Dict>();
  bool on = true;
  if (underscored(key).rfind("no_", 0) == 0 && !entries.count(underscored(key))) {
    on = false;
    key.erase(0, 3);
  }
  Tree& flag = option(*table, key, argument);
  if (!flag.is<bool>()) misuse(argument, ": expected --", key, "=VALUE, VALUE ", expected(flag));
  flag = on;
}

// ---- TOML ----

// Converts `node` to a value of the kind of `like`; none if it has another type.
std::optional<Tree> read(const toml::node& node, const Tree& like) {
  if (like.is<bool>() && node.is_boolean()) return Tree(**node.as_boolean());
  if (like.is<std::string>() && node.is_string()) return Tree(**node.as_string());
  if (is_number(like) && node.is_integer()) return Tree(int64_t{**node.as_integer()});
  if (is_number(like) && node.is_floating_point()) return Tree(**node.as_floating_point());
  if (!like.is<Tree::List>() || !node.is_array()) return std::nullopt;
  const auto& defaults = like.as<Tree::List>();
  Tree element = defaults.empty() ? Tree("") : defaults.front();
  Tree::List list;
  for (const toml::node& item : *node.as_array()) {
    std::optional<Tree> value = read(item, element);
    if (!value) return std::nullopt;
    list.push_back(*std::move(value));
  }
  return Tree(std::move(list));
}

void apply_table(Tree& options, const toml::table& table, const std::string& file) {
  for (const auto& [key, node] : table) {
    std::ostringstream where;
    where << file << ":" << node.source().begin.line;
    Tree& value = option(options, std::string(key.str()), where.str());
    if (value.is<Tree::Dict>() && node.is_table()) {
      apply_table(value, *node.as_table(), file);
      continue;
    }
    std::optional<Tree> given = read(node, value);
    if (!given) misuse(where.str(), ": '", key.str(), "': expected ", expected(value));
    value = *std::move(given);
  }
}

void apply_file(Tree& options, const std::string& file) {
  std::ifstream stream(file);
  if (!stream) misuse("cannot read the options file '", file, "'");
  std::ostringstream text;
  text << stream.rdbuf();
  try {
    apply_table(options, toml::parse(text.str()), file);
  } catch (const toml::parse_error& error) {
    misuse(file, ":", error.source().begin.line, ": not TOML: ", error.description());
  }
}

Json json_of(const toml::node& node, const std::string& file) {
  if (auto boolean = node.as_boolean()) return {**boolean};
  if (auto integer = node.as_integer()) return {int64_t{**integer}};
  if (auto real = node.as_floating_point()) return {**real};
  if (auto text = node.as_string()) return {**text};
  if (auto array = node.as_array()) {
    Json::List list;
    for (const toml::node& item : *array) list.push_back(json_of(item, file));
    return {std::move(list)};
  }
  if (auto table = node.as_table()) {
    Json::Object object;
    for (const auto& [key, value] : *table)
      object.emplace_back(std::string(key.str()), json_of(value, file));
    return {std::move(object)};
  }
  fail(file, ":", node.source().begin.line, ": dates and times are not supported");
}

// The shortest text that reads back as this number; toml++ writes 0.1 with 17 digits.
std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  char text[40];
  std::string digits(text, std::to_chars(text, std::end(text), value).ptr);
  return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
}

std::string quoted(const std::string& text) {
  std::ostringstream stream;
  stream << toml::value<std::string>(text);
  return stream.str();
}

std::string key_text(const std::string& key) {
  bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? key : quoted(key);
}

std::string value_text(const Tree& value) {
  if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
  if (value.is<int64_t>()) return std::to_string(value.as<int64_t>());
  if (value.is<double>()) return number_text(value.as<double>());
  if (value.is<std::string>()) return quoted(value.as<std::string>());
  if (!value.is<Tree::List>())
    fail("options are booleans, numbers, strings, lists and tables; got a ", value.kind());
  std::string text;
  for (const Tree& item : value.as<Tree::List>())
    text += (text.empty() ? "" : ", ") + value_text(item);
  return "[" + text + "]";
}

// Writes the values of a table before its subtables, as TOML requires.
void write_table(std::ostream& stream, const Tree& table, const std::string& prefix,
                 const std::map<std::string, std::string>& comments = {}) {
  const auto& entries = table.as<Tree::Dict>();
  for (const auto& [key, value] : entries) {
    if (value.is<Tree::Dict>()) continue;
    stream << key_text(key) << " = " << value_text(value);
    auto comment = comments.find(prefix + key);
    if (comment == comments.end()) comment = comments.find(key);
    if (comment != comments.end()) stream << "  # " << comment->second;
    stream << "\n";
  }
  for (const auto& [key, value] : entries) {
    if (!value.is<Tree::Dict>()) continue;
    stream << "\n[" << prefix << key_text(key) << "]\n";
    write_table(stream, value, prefix + key_text(key) + ".", comments);
  }
}

}  // namespace

Tree resolve_options(const Tree& defaults, const std::string& file,
                     const std::vector<std::string>& args) {
  Tree options = defaults;
  std::string source = file;
  std::vector<std::string> rest;
  const std::string config = "--config=";
  for (const std::string& argument : args) {
    if (argument.rfind(config, 0) == 0)
      source = argument.substr(config.size());
    else
      rest.push_back(argument);
  }
  if (!source.empty()) apply_file(options, source);
  for (const std::string& argument : rest) apply_argument(options, argument);
  return options;
}

Json::Object read_toml(const std::string& path) {
  std::ifstream stream(path);
  require(bool(stream), "cannot read '", path, "'");
  std::ostringstream text;
  text << stream.rdbuf();
  try {
    return std::get<Json::Object>(json_of(toml::parse(text.str()), path).value);
  } catch (const toml::parse_error& error) {
    fail(path, ":", error.source().begin.line, ": not TOML: ", error.description());
  }
}

std::string format_options(const Tree& options,
                           const std::map<std::string, std::string>& descriptions) {
  std::ostringstream text;
  text << "the options of this script, written --name=value, and their values:\n";
  write_table(text, options, "", descriptions);
  return text.str();
}

void write_toml(const std::string& path, const Tree& values) {
  std::ostringstream text;
  write_table(text, values, "");
  write_file(path, text.view());
}

void write_config(const std::string& workdir, const Tree& options) {
  std::error_code ignored;
  std::filesystem::create_directories(workdir, ignored);
  if (WorkdirLock::is_held_elsewhere(workdir)) return;
  try {
    write_toml(workdir + "/config.toml", options);
  } catch (const NoSpace& error) {
    // The run does not need this file, and may free space when it deletes old checkpoints.
    notice(std::string(error.what()) + "; the run goes on without this file");
  }
}

}  // namespace redco
