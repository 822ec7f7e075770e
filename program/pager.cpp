#include "pager.h"

#include <sys/wait.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace redco {

bool page(const std::string& text) {
  const char* chosen = std::getenv("PAGER");
  std::string command = chosen != nullptr && *chosen != 0 ? chosen : "less -FRX";
  struct sigaction ignore = {}, interrupt, broken_pipe;
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &interrupt);
  sigaction(SIGPIPE, &ignore, &broken_pipe);
  // The shell ignores these signals, too. The pager may handle them, as less does.
  FILE* pager = popen(
      ("command -v " + command.substr(0, command.find(' ')) + " >/dev/null || exit 127; " + command)
          .c_str(),
      "w");
  int status = -1;
  if (pager != nullptr) {
    std::fwrite(text.data(), 1, text.size(), pager);
    std::fputc('\n', pager);
    status = pclose(pager);
  }
  sigaction(SIGINT, &interrupt, nullptr);
  sigaction(SIGPIPE, &broken_pipe, nullptr);
  return status != -1 && !(WIFEXITED(status) && WEXITSTATUS(status) == 127);
}

}  // namespace redco
