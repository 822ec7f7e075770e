// Generates completion scripts for bash, zsh and fish.

#include "completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string_view>

namespace redco {

namespace {

// The possible values of an option: words, files, folders, or unknown.
struct Value {
  enum Kind { words, file, folder, unknown } kind = unknown;
  std::string text;  // the words, separated by spaces
};

struct CompletedFlag {
  std::vector<std::string> names;  // each with its dashes
  std::string description, type;
  bool takes_value;
  Value value;
};

// The program, or one of its commands.
struct Command {
  std::string name;  // "" is the program
  std::string description;
  std::vector<CompletedFlag> flags;
  Value operand;
};

// Derived from the type name that --help shows: `SHELL:{bash,zsh,fish}`, `FILE`, `PATH` of a file
// or folder, `WORKDIR`, `N:INT in [1 - 9]`.
Value value_of(const std::string& type) {
  size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::replace(words.begin(), words.end(), ',', ' ');
    return {Value::words, words};
  }
  if (type.ends_with("FILE") || type.ends_with("PATH")) return {Value::file, ""};
  if (type.ends_with("DIR")) return {Value::folder, ""};
  return {};
}

CompletedFlag flag_of(const CLI::Option& option) {
  CompletedFlag flag;
  for (const auto& name : option.get_snames()) flag.names.push_back("-" + name);
  // Keeps only the first of --no-strict and --no_strict: with both, completion would stop after
  // `--no`.
  for (const auto& name : option.get_lnames())
    if (name.find('_') == std::string::npos) flag.names.push_back("--" + name);
  flag.description = option.get_description();
  std::string type = option.get_type_name();
  flag.type = type.substr(0, type.find(':'));
  flag.takes_value = option.get_items_expected_max() > 0;
  flag.value = value_of(type);
  return flag;
}

Command command_of(const CLI::App& app, const std::string& name) {
  Command command{name, app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional())
      command.flags.push_back(flag_of(*option));
    else if (command.operand.kind == Value::unknown)  // the first
      command.operand = value_of(option->get_name(true));
  }
  // A script follows the flags of `plan` and `check`.
  if (app.get_prefix_command() && command.operand.kind == Value::unknown)
    command.operand.kind = Value::file;
  return command;
}

// The program itself comes first.
std::vector<Command> commands_of(const CLI::App& program) {
  std::vector<Command> commands{command_of(program, "")};
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command_of(*command, command->get_name()));
  return commands;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Quotes text for any of the shells.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

std::string all_names(const Command& command) {
  std::vector<std::string> names;
  for (const CompletedFlag& flag : command.flags)
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  return joined(names, " ");
}

std::string names_of_commands(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (size_t i = 1; i < commands.size(); ++i) names.push_back(commands[i].name);
  return joined(names, " ");
}

// --- bash ----------------------------------------------------------------------------------------

std::string bash_candidates(const Value& value) {
  switch (value.kind) {
    case Value::words:
      return "compgen -W " + quoted(value.text) + " -- \"$word\"";
    case Value::file:
      return "compgen -f -- \"$word\"";
    case Value::folder:
      return "compgen -d -- \"$word\"";
    case Value::unknown:
      break;
  }
  return ":";
}

std::string bash(const std::vector<Command>& commands) {
  std::vector<std::string> names, with_value;
  std::string cases;
  auto add_case = [&](const std::string& pattern, const std::string& candidates) {
    cases += "    " + pattern + ") " + candidates + " ;;\n";
  };
  for (const Command& command : commands) {
    for (const CompletedFlag& flag : command.flags) {
      if (!flag.takes_value) continue;
      std::vector<std::string> patterns;
      for (const auto& name : flag.names) patterns.push_back(quoted(command.name + " " + name));
      with_value.insert(with_value.end(), patterns.begin(), patterns.end());
      if (flag.value.kind != Value::unknown)
        add_case(joined(patterns, " | "), bash_candidates(flag.value));
    }
    add_case(quoted(command.name + " -"), bash_candidates({Value::words, all_names(command)}));
    if (!command.name.empty()) {
      add_case(quoted(command.name + " "), bash_candidates(command.operand));
      names.push_back(quoted(" " + command.name));
    }
  }
  add_case("' '", bash_candidates({Value::words, names_of_commands(commands)}) +
                      "; compgen -f -X '!*.lua' -- \"$word\"; compgen -d -- \"$word\"");
  std::string script = R"(# Completes redco-lua in bash. Written by: redco-lua --completion bash
_redco_lua_candidates() {
  local command=$1 flag=$2 file=$3 word=$4
  # Words after FILE are arguments of the script.
  if [[ $file ]]; then compgen -f -- "$word"; return; fi
  if [[ ! $flag && $word == -* ]]; then flag=-; fi
  case "$command $flag" in
@cases@  esac
}

_redco_lua() {
  local command='' flag='' file='' word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $flag ]]; then
      # bash splits --flag=value into three words.
      [[ $word == = ]] || flag=''
      continue
    fi
    case "$command $word" in
      @with_value@) flag=$word ;;
      *' -'?*) ;;
      @names@) command=$word ;;
      ' '*) file=$word; break ;;
    esac
  done
  word=${COMP_WORDS[COMP_CWORD]}
  if [[ $flag && $word == = ]]; then word=''; fi
  mapfile -t COMPREPLY < <(_redco_lua_candidates "$command" "$flag" "$file" "$word")
}
complete -o filenames -F _redco_lua redco-lua
)";
  script = replaced(script, "@cases@", cases);
  script = replaced(script, "@with_value@", joined(with_value, " | "));
  return replaced(script, "@names@", joined(names, " | "));
}

// --- zsh -----------------------------------------------------------------------------------------

std::string zsh_action(const Value& value) {
  switch (value.kind) {
    case Value::words:
      return "(" + value.text + ")";
    case Value::file:
      return "_files";
    case Value::folder:
      return "_files -/";
    case Value::unknown:
      break;
  }
  return " ";
}

// The lines of _arguments, each with a trailing backslash.
std::string zsh_flags(const Command& command, const std::string& indent) {
  std::string lines;
  for (const CompletedFlag& flag : command.flags) {
    std::string about = "[" + replaced(replaced(flag.description, "[", "\\["), "]", "\\]") + "]";
    if (flag.takes_value) about += ":" + flag.type + ":" + zsh_action(flag.value);
    std::string others = flag.names.size() > 1 ? "(" + joined(flag.names, " ") + ")" : "*";
    for (const auto& name : flag.names) {
      bool takes_equals = flag.takes_value && name.starts_with("--");
      lines += indent + quoted(others + name + (takes_equals ? "=" : "") + about) + " \\\n";
    }
  }
  return lines;
}

std::string zsh(const std::vector<Command>& commands) {
  std::string names, cases;
  for (size_t i = 1; i < commands.size(); ++i) {
    const Command& command = commands[i];
    names += " " + quoted(command.name + ":" + command.description);
    cases += "        " + command.name + ") _arguments \\\n" + zsh_flags(command, "          ") +
             "          " + quoted("1:operand:" + zsh_action(command.operand)) + " ;;\n";
  }
  std::string script = R"(#compdef redco-lua
# Completes redco-lua in zsh. Written by: redco-lua --completion zsh
_redco-lua() {
  local curcontext=$curcontext state line
  local -a commands=(@names@)
  _arguments -C -A '-*' \
@flags@    '1: :->first' '*:: :->rest'
  case $state in
    first)
      _describe -t commands command commands
      _files -g '*.lua' ;;
    rest)
      case $words[1] in
@cases@        *) _files ;;
      esac ;;
  esac
}
if [[ $funcstack[1] == _redco-lua ]]; then _redco-lua "$@"; else compdef _redco-lua redco-lua; fi
)";
  script = replaced(script, "@names@", names.substr(1));
  script = replaced(script, "@flags@", zsh_flags(commands[0], "    "));
  return replaced(script, "@cases@", cases);
}

// --- fish ----------------------------------------------------------------------------------------

std::string fish_value(const Value& value) {
  switch (value.kind) {
    case Value::words:
      return " -x -a " + quoted(value.text);
    case Value::file:
      return " -r -F";
    case Value::folder:
      return " -x -a '(__fish_complete_directories)'";
    case Value::unknown:
      break;
  }
  return " -x";
}

std::string fish(const std::vector<Command>& commands) {
  std::string script = R"(# Completes redco-lua in fish. Written by: redco-lua --completion fish
# Whether the first word that is neither a flag nor a value equals the argument; '' means none.
function __redco_lua_first
  set -l words (commandline -opc)
  set -l is_value no
  for word in $words[2..]
    if test $is_value = yes
      set is_value no
    else if contains -- $word @with_value@
      set is_value yes
    else if not string match -q -- '-?*' $word
      test $word = "$argv"
      return
    end
  end
  test -z "$argv"
end
)";
  std::vector<std::string> with_value;
  for (const Command& command : commands) {
    std::string line = "complete -c redco-lua -n " + quoted("__redco_lua_first " + command.name);
    for (const CompletedFlag& flag : command.flags) {
      script += line;
      for (const auto& name : flag.names)
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      script += (flag.takes_value ? fish_value(flag.value) : "") + " -d " +
                quoted(flag.description) + "\n";
      if (flag.takes_value)
        with_value.insert(with_value.end(), flag.names.begin(), flag.names.end());
    }
    if (command.name.empty()) {
      script += line + " -f -k -a '(__fish_complete_suffix .lua)'\n";
      for (size_t i = 1; i < commands.size(); ++i)
        script +=
            line + " -f -a " + commands[i].name + " -d " + quoted(commands[i].description) + "\n";
    } else {
      script += line + " -f" + fish_value(command.operand).substr(3) + "\n";
    }
  }
  return replaced(script, "@with_value@", joined(with_value, " "));
}

const std::map<std::string, std::string (*)(const std::vector<Command>&)> writers{
    {"bash", bash}, {"fish", fish}, {"zsh", zsh}};

}  // namespace

const std::vector<std::string>& completed_shells() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> keys;
    for (const auto& [name, writer] : writers) keys.push_back(name);
    return keys;
  }();
  return names;
}

std::string completion(const CLI::App& program, const std::string& shell) {
  return writers.at(shell)(commands_of(program));
}

}  // namespace redco
