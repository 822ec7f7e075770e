// The commands `redco-lua chat` and `redco-lua generate`. Their Lua code is in lua/redco/talk.

#include "talk_commands.h"

#include "command_code.h"

#include <redco/error.h>
#include <redco/script_engine.h>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cmath>

namespace redco {

namespace {

// Checks a number. Its limits are not part of the help text.
CLI::Validator number(double least, double most, const char* expected, bool is_whole = false) {
  auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    if (fits && is_whole) fits = std::floor(value) == value;
    return fits ? "" : "expected " + std::string(expected) + ", got " + text;
  };
  return {check, ""};
}

enum class Of { both, chat };

struct Flag {
  const char *names, *type, *help, *standard;  // the value without the flag, or nullptr
  CLI::Validator check;
  Of commands = Of::both;
};

// The key of an option in Lua is its name, with _ for -.
const std::vector<Flag>& flags() {
  constexpr double million = 1e6, exact = 9007199254740991;  // 2^53 - 1
  static const std::vector<Flag> all{
      {"--system", "TEXT", "What the model is told first", nullptr, {}, Of::chat},
      {"--temperature", "T", "0: always the likeliest token; default: as the model's files say",
       nullptr, number(0, million, "a number from 0 on")},
      {"--top-p,--top_p", "P", "Choose among the likeliest tokens of this probability together",
       nullptr, number(0, 1, "a number from 0 to 1")},
      {"--max-new-tokens,--max_new_tokens", "N", "Write at most N tokens; default: 512", "512",
       number(1, million, "a whole number of at least 1", true)},
      {"--stop", "TEXT", "End before this text; may be repeated", nullptr,
       CLI::Validator([](const std::string& text) { return text.empty() ? "expected a text" : ""; },
                      "")},
      {"--seed", "N", "The seed of the choices; default: 0", "0",
       number(0, exact, "a whole number from 0 on", true)},
      {"--dtype", "DTYPE", "The type of the weights; default: float32", "float32",
       CLI::IsMember({"float32", "bfloat16", "float16", "auto"})},
      {"--base",
       "PATH",
       "The model of a folder of adapters, if the folder does not name it",
       nullptr,
       {}},
  };
  return all;
}

std::string first_name(const Flag& flag) {
  const std::string names = flag.names;
  return names.substr(0, names.find(','));
}

void add_flags(CLI::App& command, Of which) {
  for (const Flag& flag : flags()) {
    if (flag.commands != Of::both && flag.commands != which) continue;
    command.add_option(flag.names, flag.help)
        ->type_name(flag.type)
        ->check(flag.check)
        ->expected(1)
        ->multi_option_policy(first_name(flag) == "--stop" ? CLI::MultiOptionPolicy::TakeAll
                                                           : CLI::MultiOptionPolicy::Throw);
  }
}

}  // namespace

void TalkCommands::add_to(CLI::App& program) {
  constexpr const char* path = "A model folder, a GGUF file or a folder of adapters";
  chat_ = program.add_subcommand("chat", "Talk with a model");
  chat_->add_option("PATH", path_, path)->required();
  add_flags(*chat_, Of::chat);
  generate_ = program.add_subcommand("generate", "Let a model continue a text");
  generate_->add_option("PATH", path_, path)->required();
  generate_->add_option("PROMPT", prompt_, "The text; default: standard input")->expected(0, 1);
  add_flags(*generate_, Of::both);
}

bool TalkCommands::is_given() const { return chat_->parsed() || generate_->parsed(); }

std::string TalkCommands::name() const { return chat_->parsed() ? "chat" : "generate"; }

void TalkCommands::run(ScriptEngine& engine) const {
  const CLI::App& command = chat_->parsed() ? *chat_ : *generate_;
  std::vector<std::string> args{name(), path_, isatty(STDIN_FILENO) == 1 ? "true" : "false",
                                std::to_string(prompt_.size())};
  args.insert(args.end(), prompt_.begin(), prompt_.end());
  for (const Flag& flag : flags()) {
    const std::string name = first_name(flag);
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr) continue;
    std::vector<std::string> values = option->results();
    if (values.empty() && flag.standard != nullptr) values.emplace_back(flag.standard);
    for (const std::string& value : values) args.insert(args.end(), {name, value});
  }
  constexpr const char* code = R"(
    local name, path, is_terminal, n_prompts = ...
    local prompt = n_prompts == "1" and select(5, ...) or nil
    local o = { is_terminal = is_terminal == "true", stop = {} }
    for i = 5 + n_prompts, select("#", ...), 2 do
      local flag, value = select(i, ...)
      local key = flag:sub(3):gsub("%-", "_")
      if key == "stop" then
        table.insert(o.stop, value)
      elseif key == "system" or key == "dtype" or key == "base" then
        o[key] = value
      else
        o[key] = tonumber(value)
      end
    end
    local talk = require "redco.talk"
    if name == "chat" then talk.chat(path, o) else talk.generate(path, prompt, o) end)";
  run_command_code(engine, code, name(), args);
}

}  // namespace redco
