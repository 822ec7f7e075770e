// The interactive prompt of redco-lua.

#include "prompt.h"

#include <redco/detail/user_folder.h>
#include "history_file.h"
#include "joined_output.h"
#include "line_editor.h"
#include "pager.h"
#include "shared_prompt.h"
#include "terminal.h"

#include <redco/prompt.h>
#include <redco/run_log.h>
#include <redco/script_engine.h>
#include <redco/version.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

namespace redco {

namespace {

// The time of faster chunks is not shown.
constexpr double shown_seconds = 0.1;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The engine that Ctrl-C interrupts; null while nothing runs.
std::atomic<ScriptEngine*> prompt_engine = nullptr;
// Whether a turn is unfinished on some process.
std::atomic<bool> in_turn = false;

void interrupt_line(int) {
  ScriptEngine* engine = prompt_engine;
  if (engine != nullptr || in_turn) request_interrupt();  // for waits outside Lua
  if (engine != nullptr) engine->interrupt();
}

enum class Style { error, dim };

std::string painted(Style style, const std::string& text) {
  return (style == Style::error ? "\033[31m" : "\033[2m") + text + "\033[0m";
}

// Lists file names with this beginning; names of folders end in a slash.
std::vector<std::string> files_beginning(const std::string& beginning) {
  size_t slash = beginning.rfind('/') + 1;  // 0 if there is none
  std::string folder = beginning.substr(0, slash);
  std::string name = beginning.substr(slash);
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder.empty() ? "." : folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::string entry = entries->path().filename().string();
    bool is_hidden = entry.starts_with('.') && !name.starts_with('.');
    std::error_code ignored;
    if (entry.starts_with(name) && !is_hidden)
      found.push_back(folder + entry + (entries->is_directory(ignored) ? "/" : ""));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Choices choices_of(const Prompt& prompt, const std::string& line, size_t cursor) {
  try {
    Prompt::Completion found = prompt.complete(line, cursor);
    if (found.is_file)
      return {found.start, files_beginning(line.substr(found.start, cursor - found.start))};
    return {found.start, found.candidates};
  } catch (const ScriptError&) {  // for example out of memory
    return {cursor, {}};
  }
}

// Reads a line without editing: from a pipe, or from a terminal that does not support it.
Input read_plain(const char* prompt, bool is_typed) {
  if (is_typed) std::fputs(prompt, stdout);
  std::fflush(stdout);
  char* line = nullptr;
  size_t capacity = 0;
  errno = 0;
  ssize_t size = getline(&line, &capacity, stdin);
  if (size < 0 && is_typed) std::putchar('\n');
  std::string text(line, size > 0 ? size_t(size) : 0);
  std::free(line);
  if (size < 0 && errno == EINTR) {
    std::clearerr(stdin);
    return {Input::Kind::cleared};
  }
  if (size < 0) return {Input::Kind::end};
  if (text.ends_with('\n')) text.pop_back();
  return {Input::Kind::line, text};
}

class PromptLoop {
 public:
  PromptLoop(ScriptEngine& engine, Console& console)
      : engine_(engine),
        console_(console),
        shared_(shares_prompt() ? std::make_unique<SharedPrompt>() : nullptr),
        has_colors_(is_shown() && is_capable_ && variable("NO_COLOR").empty()),
        prompt_(engine,
                {.width = width(),
                 .colors = has_colors_,
                 .line_separator = shared_ ? std::string(1, joined_line_separator) : "\n"}) {}

  void run() {
    turn([this] { return run_start_up_file(); });
    if (shared_ && !shared_->is_here()) {
      while (auto chunk = shared_->take()) run(*chunk);
      return;
    }
    {
      auto at_terminal = this->at_terminal();
      if (is_typed_ && is_shown() && is_capable_)
        editor_.emplace(HistoryFile::default_path(),
                        [this](const std::string& line, size_t cursor) {
                          return choices_of(prompt_, line, cursor);
                        });
      if (is_typed_) std::printf("redco-lua " REDCO_VERSION "; :h for help, :q or Ctrl-D to end\n");
    }
    read_and_run();
    if (shared_) shared_->give(std::nullopt);
  }

 private:
  void read_and_run() {
    const char* sign = "> ";
    while (true) {
      Input input = read(sign);
      sign = "> ";
      if (input.kind == Input::Kind::end) break;
      if (input.kind == Input::Kind::cleared) {
        prompt_.forget();
        continue;
      }
      Prompt::Fed fed = prompt_.feed(input.text);
      if (fed.status == Prompt::Status::more) {
        sign = ">> ";
        continue;
      }
      if (fed.status == Prompt::Status::quit) return;
      if (editor_) editor_->remember(fed.chunk);
      give_and_run(fed.chunk);
    }
    // An incomplete last chunk raises a syntax error.
    std::string unfinished = prompt_.forget();
    if (!unfinished.empty() && !is_typed_) give_and_run(unfinished);
  }

  Input read(const char* sign) {
    auto at_terminal = this->at_terminal();
    return editor_ ? editor_->read(sign) : read_plain(sign, is_typed_);
  }

  // Bypasses the launcher for the prompt itself, if output goes through the launcher.
  std::unique_ptr<SharedPrompt::AtTerminal> at_terminal() const {
    bool is_apart = shared_ && is_typed_;
    return is_apart ? std::make_unique<SharedPrompt::AtTerminal>() : nullptr;
  }

  bool is_shown() const { return shared_ ? shared_->width() > 0 : isatty(STDOUT_FILENO); }

  size_t width() const {
    size_t columns = shared_ ? shared_->width() : terminal_width(STDOUT_FILENO);
    return columns == 0 ? 80 : columns;
  }

  // Runs `body`. Ctrl-C may end it, and with several processes an error of another process.
  void turn(const std::function<Prompt::Answer()>& body) {
    Prompt::Answer answer;
    auto run_body = [&] {
      prompt_engine = &engine_;
      answer = body();
      prompt_engine = nullptr;
      if (!answer.text.empty()) show_answer(answer);
      std::fflush(stdout);
      return answer.message;
    };
    if (shared_) {
      in_turn = true;
      shared_->turn(run_body, [&] { show_error(answer); });
      in_turn = false;
    } else if (!run_body().empty()) {
      show_error(answer);
    }
    if (answer.hint.empty() || !is_typed_) return;
    auto at_terminal = this->at_terminal();
    show(dim(answer.hint));
  }

  void give_and_run(const std::string& chunk) {
    if (shared_) shared_->give(chunk);
    run(chunk);
  }

  void run(const std::string& chunk) {
    prompt_.set_width(width());
    auto start = std::chrono::steady_clock::now();
    turn([&] { return prompt_.run(chunk); });
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (seconds < shown_seconds || !is_typed_) return;
    char text[40];
    std::snprintf(text, sizeof(text), "[%.2f s]", seconds);
    auto at_terminal = this->at_terminal();
    show(dim(text));
    std::fflush(stdout);
  }

  // Long texts of help go through a pager.
  void show_answer(const Prompt::Answer& answer) {
    auto n_lines = size_t(std::ranges::count(answer.text, '\n')) + 1;
    bool is_long = !shared_ && n_lines >= terminal_height(STDOUT_FILENO);
    if (answer.is_help && is_typed_ && is_shown() && is_capable_ && is_long && page(answer.text))
      return;
    show(answer.text);
  }

  static void show(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::putchar('\n');
  }

  std::string dim(const std::string& text) const {
    return has_colors_ ? painted(Style::dim, text) : text;
  }

  void show_error(const Prompt::Answer& answer) {
    bool has_colors = has_colors_ && (shared_ || isatty(STDERR_FILENO));
    console_.line(has_colors ? painted(Style::error, answer.message) : answer.message);
    if (answer.traceback.empty()) return;
    console_.line(has_colors ? painted(Style::dim, answer.traceback) : answer.traceback);
  }

  // Runs the user's start-up file, $REDCO_INIT or ~/.config/redco/init.lua.
  Prompt::Answer run_start_up_file() {
    std::string path = variable("REDCO_INIT");
    if (path.empty()) {
      path = user_folder("XDG_CONFIG_HOME", "/.config") + "/redco/init.lua";
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) return {};
    }
    try {
      engine_.run_file(path);
      return {};
    } catch (const Error& error) {
      Prompt::Answer answer;
      answer.message = error.what();
      return answer;
    }
  }

  ScriptEngine& engine_;
  Console& console_;
  bool is_typed_ = isatty(STDIN_FILENO);
  bool is_capable_ = !variable("TERM").empty() && variable("TERM") != "dumb";
  std::unique_ptr<SharedPrompt> shared_;  // null with a single process
  bool has_colors_;
  Prompt prompt_;
  std::optional<LineEditor> editor_;
};

}  // namespace

void run_prompt(ScriptEngine& engine, Console& console) {
  struct sigaction action = {};
  action.sa_handler = interrupt_line;  // without SA_RESTART, so that it interrupts reading
  sigaction(SIGINT, &action, nullptr);
  PromptLoop(engine, console).run();
}

}  // namespace redco
