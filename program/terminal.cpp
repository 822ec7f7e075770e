// Console output on a terminal.

#include "terminal.h"

#include <redco/run_log.h>

#include <sys/ioctl.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>

namespace redco {

namespace {

class Terminal : public Console {
 public:
  void line(std::string_view text) override {
    clear_bar();
    std::fprintf(stderr, "%.*s\n", int(text.size()), text.data());
  }

  void progress(const ProgressState& state) override {
    bool stays = state.finished && state.is_kept;
    if (is_terminal_) {
      size_t width = terminal_width(STDERR_FILENO);
      std::fprintf(stderr, "\r\033[K%s%s",
                   format_progress(state, width > 1 ? width - 1 : 79).c_str(), stays ? "\n" : "");
      has_bar_ = !stays;
      if (state.finished) clear_bar();
      return;
    }
    auto now = std::chrono::steady_clock::now();
    if (!stays && now - shown_ < std::chrono::seconds(10)) return;
    shown_ = now;
    std::fprintf(stderr, "%s\n", format_progress(state, 200).c_str());
  }

 private:
  void clear_bar() {
    if (has_bar_) std::fputs("\r\033[K", stderr);
    has_bar_ = false;
  }

  bool is_terminal_ = isatty(STDERR_FILENO);
  bool has_bar_ = false;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace

namespace {

size_t dimension(int descriptor, unsigned short winsize::*member, size_t otherwise) {
  if (!isatty(descriptor)) return 0;
  winsize size;
  bool is_known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.*member > 0;
  return is_known ? size.*member : otherwise;
}

}  // namespace

size_t terminal_width(int descriptor) { return dimension(descriptor, &winsize::ws_col, 80); }

size_t terminal_height(int descriptor) { return dimension(descriptor, &winsize::ws_row, 24); }

std::shared_ptr<Console> make_terminal() { return std::make_shared<Terminal>(); }

}  // namespace redco
