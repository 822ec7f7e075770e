#include "shared_prompt.h"

#include "workers.h"

#include <redco/engine.h>

#include <pthread.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace redco {

namespace {

// Waits until the launcher has handed on what the processes have written.
void await_output() {
  char byte = 0;
  if (send(Workers::prompt_descriptor, &byte, 1, MSG_NOSIGNAL) == 1)
    while (recv(Workers::prompt_descriptor, &byte, 1, 0) < 0 && errno == EINTR) continue;
}

// What several processes may say alike.
std::string message_of(const ScriptError& error) {
  return error.kind() == ScriptError::Kind::interrupted ? "interrupted" : error.what();
}

}  // namespace

bool shares_prompt() { return std::getenv("REDCO_PROMPT") != nullptr; }

void run_prompt(const SharedPrompt& prompt) {
  Processes processes = find_processes();
  Turns turns(processes);
  while (true) {
    std::optional<std::string> chunk;
    if (processes.rank == 0) {
      await_output();
      chunk = prompt.read();
      turns.give(chunk);
    } else {
      chunk = turns.take();
    }
    if (!chunk) return;
    prompt.calm();
    turns.begin([main = pthread_self()] { pthread_kill(main, SIGINT); });
    try {
      prompt.run(*chunk);
    } catch (const ScriptError& error) {
      std::string message = message_of(error);
      if (turns.fail(message).text == message) {
        bool is_short = error.kind() == ScriptError::Kind::interrupted || error.traceback().empty();
        std::fprintf(stderr, "%s\n",
                     (is_short ? message : message + "\n" + error.traceback()).c_str());
      }
    }
    std::fflush(nullptr);
    turns.end();
  }
}

}  // namespace redco
