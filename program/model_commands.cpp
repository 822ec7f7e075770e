// The commands `redco-lua chat`, `generate`, `serve` and `evaluate`. Their Lua code is in
// lua/redco/talk, lua/redco/serve and lua/redco/evaluate.

#include "model_commands.h"

#include "command_code.h"

#include <redco/error.h>
#include <redco/script_engine.h>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

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

// The commands that have a flag.
enum Of : unsigned { of_chat = 1, of_generate = 2, of_serve = 4, of_evaluate = 8 };
constexpr unsigned of_terminal = of_chat | of_generate;
constexpr unsigned of_all = of_terminal | of_serve | of_evaluate;

struct ModelFlag {
  unsigned commands;
  const char *names, *type, *help;  // without a type it has no value
  const char* standard;             // the value without the flag, or nullptr
  CLI::Validator check = {};
};

CLI::Validator some_text() {
  return {[](const std::string& text) { return text.empty() ? "expected a text" : ""; }, ""};
}

// The key of an option in Lua is its name, with _ for -.
const std::vector<ModelFlag>& model_flags() {
  constexpr double million = 1e6, exact = 9007199254740991;  // 2^53 - 1
  static const std::vector<ModelFlag> all{
      {of_chat, "--system", "TEXT", "What the model is told first", nullptr},
      {of_terminal, "--temperature", "T",
       "0: always the likeliest token; default: as the model's files say", nullptr,
       number(0, million, "a number from 0 on")},
      {of_terminal, "--top-p,--top_p", "P",
       "Choose among the likeliest tokens of this probability together", nullptr,
       number(0, 1, "a number from 0 to 1")},
      {of_terminal, "--max-new-tokens,--max_new_tokens", "N",
       "Write at most N tokens; default: 512", "512",
       number(1, million, "a whole number of at least 1", true)},
      {of_terminal, "--stop", "TEXT", "End before this text; may be repeated", nullptr,
       some_text()},
      {of_terminal, "--seed", "N", "The seed of the choices; default: 0", "0",
       number(0, exact, "a whole number from 0 on", true)},
      {of_serve, "--host", "ADDRESS", "The address to listen at; default: 127.0.0.1", "127.0.0.1",
       some_text()},
      {of_serve, "--port", "PORT", "The port to listen at, 0 for any; default: 8000", "8000",
       number(0, 65535, "a whole number from 0 to 65535", true)},
      {of_serve, "--token", "TEXT",
       "The API key that clients must send; default: REDCO_SERVE_TOKEN of the environment", nullptr,
       some_text()},
      {of_serve, "--name", "NAME", "The model's name in the API; default: that of PATH", nullptr,
       some_text()},
      {of_serve, "--max-rows,--max_rows", "N", "Compute N answers at once; default: 8", "8",
       number(1, 4096, "a whole number from 1 to 4096", true)},
      {of_serve, "--kept-rows,--kept_rows", "N",
       "Keep N answers for the next turns of their conversations; default: 8", "8",
       number(0, million, "a whole number from 0 on", true)},
      {of_serve, "--max-queue,--max_queue", "N", "Let N more answers wait; default: 64", "64",
       number(0, million, "a whole number from 0 on", true)},
      {of_serve, "--max-length,--max_length", "N",
       "Tokens of prompt and answer together; default: what the model reads, at most 4096", nullptr,
       number(2, 10 * million, "a whole number of at least 2", true)},
      {of_evaluate, "--num-fewshot,--num_fewshot", "N",
       "Examples in each prompt; default: as the tasks say", nullptr,
       number(0, million, "a whole number from 0 on", true)},
      {of_evaluate, "--limit", "N", "Only the first N documents, or a share below 1", nullptr,
       number(0, million, "a number of documents or a share")},
      {of_evaluate, "--batch-size,--batch_size", "N", "Prompts at a time, per process; default: 8",
       "8", number(1, million, "a whole number of at least 1", true)},
      {of_evaluate, "--max-length,--max_length", "N",
       "Tokens that the model reads; default: as its configuration says", nullptr,
       number(1, million, "a whole number of at least 1", true)},
      {of_evaluate | of_serve, "--n-model-shards,--n_model_shards", "N",
       "Processes that share a copy of the model; default: 1", "1",
       number(1, million, "a whole number of at least 1", true)},
      {of_evaluate, "--apply-chat-template,--apply_chat_template", "",
       "Make conversations of the prompts", nullptr},
      {of_evaluate, "--seed", "N", "The seed of the examples' choice; default: 1234", "1234",
       number(0, 4294967295, "a whole number from 0 to 4294967295", true)},
      {of_evaluate, "--output", "FOLDER", "Write results_DATE.json into this folder", nullptr},
      {of_evaluate, "--log-samples,--log_samples", "",
       "Also write each document's prompts and answers", nullptr},
      {of_all, "--dtype", "DTYPE", "The type of the weights; default: float32", "float32",
       CLI::IsMember({"float32", "bfloat16", "float16", "auto"})},
      {of_all, "--base", "PATH",
       "The model of a folder of adapters, if the folder does not name it", nullptr},
  };
  return all;
}

std::string first_name(const ModelFlag& flag) {
  const std::string names = flag.names;
  return names.substr(0, names.find(','));
}

void add_flags(CLI::App& command, unsigned which) {
  for (const ModelFlag& flag : model_flags()) {
    if ((flag.commands & which) == 0) continue;
    if (*flag.type == '\0') {
      command.add_flag(flag.names, flag.help);
      continue;
    }
    command.add_option(flag.names, flag.help)
        ->type_name(flag.type)
        ->check(flag.check)
        ->expected(1)
        ->multi_option_policy(first_name(flag) == "--stop" ? CLI::MultiOptionPolicy::TakeAll
                                                           : CLI::MultiOptionPolicy::Throw);
  }
}

}  // namespace

void add_download_flag(CLI::App& command) {
  // Workers and all loaders of a script see the variable, as if the user had set it.
  command.add_flag_callback(
      "--download", [] { setenv("HF_HUB_OFFLINE", "0", 1); },
      "Download from the Hugging Face Hub what is not in its cache");
}

void ModelCommands::add_to(CLI::App& program) {
  constexpr const char* path =
      "A model folder, a GGUF file, a folder of adapters or a name of the Hub";
  auto add = [&](const char* name, const char* help, unsigned flags) {
    CLI::App* command = program.add_subcommand(name, help);
    command->add_option(flags == of_evaluate ? "MODEL" : "PATH", path_, path)->required();
    if (flags == of_generate)
      command->add_option("PROMPT", texts_, "The text; default: standard input")->expected(0, 1);
    if (flags == of_evaluate)
      command->add_option("TASK", texts_, "A file .toml or .lua that describes a task")->required();
    add_flags(*command, flags);
    add_download_flag(*command);
    commands_.push_back(command);
  };
  add("chat", "Talk with a model", of_chat);
  add("generate", "Let a model continue a text", of_generate);
  add("serve", "Serve a model by HTTP to clients of the OpenAI API", of_serve);
  add("evaluate", "Score a model on tasks", of_evaluate);
}

const CLI::App* ModelCommands::given() const {
  for (const CLI::App* command : commands_)
    if (command->parsed()) return command;
  return nullptr;
}

std::string ModelCommands::name() const { return given()->get_name(); }

bool ModelCommands::takes_processes() const {
  return is_given() && (name() == "evaluate" || name() == "serve");
}

std::vector<std::string> ModelCommands::words() const {
  std::vector<std::string> words{name()};
  for (const ModelFlag& flag : model_flags()) {
    const CLI::Option* option = given()->get_option_no_throw(first_name(flag));
    if (option == nullptr) continue;
    for (const std::string& value : option->results())
      words.push_back(*flag.type == '\0' ? first_name(flag) : first_name(flag) + "=" + value);
  }
  words.insert(words.end(), {"--", path_});
  words.insert(words.end(), texts_.begin(), texts_.end());
  return words;
}

void ModelCommands::run(ScriptEngine& engine) const {
  const CLI::App& command = *given();
  std::vector<std::string> args{name(), path_, isatty(STDIN_FILENO) == 1 ? "true" : "false",
                                std::to_string(texts_.size())};
  args.insert(args.end(), texts_.begin(), texts_.end());
  for (const ModelFlag& flag : model_flags()) {
    const std::string name = first_name(flag);
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr) continue;
    std::vector<std::string> values = option->results();
    if (values.empty() && flag.standard != nullptr) values.emplace_back(flag.standard);
    for (const std::string& value : values) args.insert(args.end(), {name, value});
  }
  constexpr const char* code = R"(
    local name, path, is_terminal, n_texts = ...
    local texts = { unpack({ select(5, ...) }, 1, n_texts) }
    local o = { is_terminal = is_terminal == "true", stop = {} }
    local is_text = { system = true, dtype = true, base = true, host = true, token = true,
      name = true, output = true }
    for i = 5 + n_texts, select("#", ...), 2 do
      local flag, value = select(i, ...)
      local key = flag:sub(3):gsub("%-", "_")
      if key == "stop" then
        table.insert(o.stop, value)
      else
        o[key] = is_text[key] and value or value == "true" or tonumber(value)
      end
    end
    if name == "evaluate" then return require "redco.evaluate.command"(path, texts, o) end
    require "redco.talk"[name](path, o, texts[1]))";
  run_command_code(engine, code, name(), args);
}

}  // namespace redco
