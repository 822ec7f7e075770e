// Line editing with libedit.

#include "line_editor.h"

#include "terminal.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <termios.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <iterator>
#include <string_view>
#include <utility>

namespace redco {

namespace {

constexpr int history_size = 10000;
constexpr size_t max_shown = 100;  // completions

// The last signal received while a line was read, and an event that ends the wait for input. A
// signal alone does not end the wait if it arrives just before.
volatile std::sig_atomic_t noticed = 0;
int noticed_event = -1;
void notice(int signal) {
  const int error = errno;
  noticed = signal;
  eventfd_write(noticed_event, 1);
  errno = error;
}

termios terminal_before;
void restore_terminal() { tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal_before); }

// While a line is read, signals end the wait for input, after which the terminal is restored.
class NoticedSignals {
 public:
  NoticedSignals() {
    if (noticed_event < 0) noticed_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    noticed = 0;
    for (size_t i = 0; i < signals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = notice;
      sigaction(signals[i], &action, &before_[i]);
    }
  }
  ~NoticedSignals() {
    for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
  }
  NoticedSignals(const NoticedSignals&) = delete;
  NoticedSignals& operator=(const NoticedSignals&) = delete;

 private:
  static constexpr std::array<int, 5> signals = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT};
  std::array<struct sigaction, signals.size()> before_;
};

// Typed text is UTF-8, even without a UTF-8 locale.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

// In bracketed paste mode, the terminal marks the beginning and end of pasted text.
constexpr const char* paste_on = "\033[?2004h";
constexpr const char* paste_off = "\033[?2004l";
constexpr const char* paste_begin = "\033[200~";
constexpr const wchar_t* paste_end = L"\033[201~";

void write_escape(const char* escape) {
  std::fputs(escape, stdout);
  std::fflush(stdout);
}

// Lists completions below the line, in columns.
void list(const std::vector<std::string>& texts) {
  size_t n = std::min(texts.size(), max_shown);
  size_t widest = 0;
  for (size_t i = 0; i < n; ++i) widest = std::max(widest, texts[i].size());
  size_t columns = std::max<size_t>(1, terminal_width(STDOUT_FILENO) / (widest + 2));
  size_t rows = (n + columns - 1) / columns;
  std::string text;
  for (size_t row = 0; row < rows; ++row) {
    text += '\n';
    for (size_t i = row; i < n; i += rows) {
      text += texts[i];
      if (i + rows < n) text.append(widest + 2 - texts[i].size(), ' ');
    }
  }
  if (texts.size() > n) text += "\n... " + std::to_string(texts.size() - n) + " more";
  text += '\n';
  std::fputs(text.c_str(), stdout);
}

std::string common_beginning(const std::vector<std::string>& texts) {
  std::string common = texts.front();
  for (const std::string& text : texts) {
    auto end = std::mismatch(common.begin(), common.end(), text.begin(), text.end()).first;
    common.erase(end, common.end());
  }
  return common;
}

}  // namespace

struct LineEditor::Impl {
  Impl(const std::string& history_path, Complete complete)
      : file(history_path), complete(std::move(complete)) {}

  HistoryFile file;
  Complete complete;
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string newest;  // entry of the history
  const char* prompt = "";
  bool is_cleared = false;
  int ending = 0;  // signal that ends the program

  static Impl& of(EditLine* editor) {
    void* impl = nullptr;
    el_get(editor, EL_CLIENTDATA, &impl);
    return *static_cast<Impl*>(impl);
  }

  // Returns whether the last signal ends the line.
  static bool handle_signal(EditLine* editor) {
    eventfd_t n_noticed;
    eventfd_read(noticed_event, &n_noticed);
    switch (int signal = std::exchange(noticed, 0)) {
      case SIGWINCH:
        el_resize(editor);
        return false;
      case SIGCONT:  // the shell used the terminal meanwhile
        el_set(editor, EL_PREP_TERM, 0);
        el_set(editor, EL_PREP_TERM, 1);
        write_escape(paste_on);
        el_set(editor, EL_REFRESH);
        return false;
      case SIGINT:
        of(editor).is_cleared = true;
        return true;
      case SIGTERM:
      case SIGHUP:
        of(editor).ending = signal;
        return true;
      default:
        return false;
    }
  }

  static int read_character(EditLine* editor, wchar_t* character) {
    std::mbstate_t state = {};
    while (true) {
      pollfd waits[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                        {.fd = noticed_event, .events = POLLIN, .revents = 0}};
      poll(waits, std::size(waits), -1);
      if (waits[1].revents != 0 && handle_signal(editor)) return 0;
      if (waits[0].revents == 0) continue;
      char byte;
      ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return 0;
      if (n < 0) continue;
      size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == size_t(-1)) state = {};  // skips invalid UTF-8
      if (used <= 1) return 1;
    }
  }

  static unsigned char clear(EditLine* editor, int) {
    const LineInfo* line = el_line(editor);
    el_cursor(editor, int(line->lastchar - line->cursor));
    el_insertstr(editor, "^C");
    el_push(editor, "\n");
    of(editor).is_cleared = true;
    return CC_REFRESH;
  }

  static unsigned char suspend(EditLine* editor, int) {
    write_escape(paste_off);
    el_set(editor, EL_PREP_TERM, 0);
    std::raise(SIGTSTP);  // returns when the shell continues this process
    noticed = 0;
    el_set(editor, EL_PREP_TERM, 1);
    write_escape(paste_on);
    return CC_REDISPLAY;
  }

  // Pasted lines stay together as one chunk until Enter.
  static unsigned char paste(EditLine* editor, int) {
    std::wstring text;
    wchar_t character;
    while (!text.ends_with(paste_end)) {
      if (read_character(editor, &character) != 1) return CC_EOF;
      text += character == L'\r' ? L'\n' : character;
    }
    text.erase(text.size() - std::wcslen(paste_end));
    if (text.ends_with(L'\n')) text.pop_back();
    return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char complete_word(EditLine* editor, int) {
    const LineInfo* line = el_line(editor);
    std::string text(line->buffer, line->lastchar);
    auto cursor = size_t(line->cursor - line->buffer);
    size_t indent = text.find_first_not_of(" \t\n");
    if (cursor <= std::min(indent, text.size())) {
      el_insertstr(editor, "  ");
      return CC_REFRESH;
    }
    Choices choices = of(editor).complete(text, cursor);
    if (choices.texts.empty()) return CC_REFRESH_BEEP;
    std::string common = common_beginning(choices.texts);
    size_t typed = cursor - choices.start;
    if (common.size() > typed) {
      el_insertstr(editor, common.c_str() + typed);
      return CC_REFRESH;
    }
    if (choices.texts.size() == 1) return CC_REFRESH;
    list(choices.texts);
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(const std::string& history_path, Complete complete)
    : impl_(std::make_unique<Impl>(history_path, std::move(complete))) {
  use_utf8();
  History* history = impl_->history = history_init();
  HistEvent event;
  ::history(history, &event, H_SETSIZE, history_size);
  for (const std::string& entry : impl_->file.read())
    ::history(history, &event, H_ENTER, entry.c_str());

  EditLine* editor = impl_->editor = el_init("redco-lua", stdin, stdout, stderr);
  el_set(editor, EL_CLIENTDATA, impl_.get());
  el_set(
      editor, EL_PROMPT, +[](EditLine* e) { return const_cast<char*>(Impl::of(e).prompt); });
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, ::history, history);
  el_set(editor, EL_GETCFN, &Impl::read_character);
  // Ctrl-C and Ctrl-Z are bound to functions of this file, so the terminal must not turn them into
  // signals.
  el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
  // While a chunk runs, the terminal must not echo ^C into a progress bar.
  tcgetattr(STDIN_FILENO, &terminal_before);
  std::atexit(restore_terminal);  // also after os.exit
  std::at_quick_exit(restore_terminal);
  el_set(editor, EL_SETTY, "-x", "-echoctl", nullptr);
  el_set(editor, EL_ADDFN, "redco-clear", "Discards the typed text", &Impl::clear);
  el_set(editor, EL_ADDFN, "redco-suspend", "Stops the program", &Impl::suspend);
  el_set(editor, EL_ADDFN, "redco-complete", "Completes a name", &Impl::complete_word);
  el_set(editor, EL_ADDFN, "redco-paste", "Inserts pasted lines", &Impl::paste);
  constexpr const char* keys[][2] = {
      {"^I", "redco-complete"},      {"^C", "redco-clear"},
      {"^Z", "redco-suspend"},       {"^R", "em-inc-search-prev"},
      {paste_begin, "redco-paste"},  {"\033[3~", "ed-delete-next-char"},
      {"\033[H", "ed-move-to-beg"},  {"\033[F", "ed-move-to-end"},
      {"\033[1~", "ed-move-to-beg"}, {"\033[4~", "ed-move-to-end"},
      {"\033[1;5C", "em-next-word"}, {"\033[1;5D", "ed-prev-word"},
  };
  el_source(editor, nullptr);  // ~/.editrc first, since these keys must not change
  for (const auto& key : keys) el_set(editor, EL_BIND, key[0], key[1], nullptr);
}

LineEditor::~LineEditor() {
  el_end(impl_->editor);
  history_end(impl_->history);
}

Input LineEditor::read(const char* prompt) {
  impl_->prompt = prompt;
  impl_->is_cleared = false;
  const char* line = nullptr;
  {
    NoticedSignals signals;
    el_set(impl_->editor, EL_PREP_TERM, 1);  // before the prompt appears and the user types
    write_escape(paste_on);
    int size = 0;
    line = el_gets(impl_->editor, &size);
    write_escape(paste_off);
  }
  if (line == nullptr) std::putchar('\n');
  if (impl_->is_cleared) return {Input::Kind::cleared};
  if (impl_->ending != 0) {
    restore_terminal();
    std::raise(impl_->ending);
  }
  if (line == nullptr) return {Input::Kind::end};
  std::string text = line;
  if (text.ends_with('\n')) text.pop_back();
  return {Input::Kind::line, text};
}

void LineEditor::remember(const std::string& entry) {
  if (entry.find_first_not_of(" \t\n") == std::string::npos || entry == impl_->newest) return;
  impl_->newest = entry;
  HistEvent event;
  ::history(impl_->history, &event, H_ENTER, entry.c_str());
  impl_->file.append(entry);
}

}  // namespace redco
