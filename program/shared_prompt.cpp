// A prompt shared by the processes of a run.

#include "shared_prompt.h"

#include "workers.h"

#include <redco/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace redco {

namespace {

constexpr size_t rank_columns = 6;  // "[all] "

// Waits until the launcher has printed the output of all processes.
void await_output() {
  char byte = 0;
  if (send(prompt_descriptor, &byte, 1, MSG_NOSIGNAL) == 1)
    while (recv(prompt_descriptor, &byte, 1, 0) < 0 && errno == EINTR) continue;
}

}  // namespace

bool shares_prompt() {
  static const bool known = std::getenv(prompt_variable) != nullptr;
  return known;
}

SharedPrompt::SharedPrompt()
    : processes_(find_processes()),
      turns_(processes_),
      width_(std::strtoul(std::getenv(prompt_variable), nullptr, 10)) {
  if (width_ > 0) width_ = std::max(width_, 2 * rank_columns) - rank_columns;
  // Child processes do not share the prompt.
  unsetenv(prompt_variable);
  if (is_here()) fcntl(prompt_descriptor, F_SETFD, FD_CLOEXEC);
}

void SharedPrompt::turn(const std::function<std::string()>& body,
                        const std::function<void()>& show) {
  turns_.begin([main = pthread_self()] { pthread_kill(main, SIGINT); });
  std::string message = body();
  if (!message.empty()) {
    // Its position differs between processes.
    if (message.ends_with("interrupted")) message = "interrupted";
    if (turns_.fail(message).text == message) show();
  }
  std::fflush(nullptr);
  if (!turns_.end()) draw_alike();
  if (is_here()) await_output();
}

// After a failed turn, some processes may have drawn more random numbers than others.
void SharedPrompt::draw_alike() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  if (is_here()) {
    at::Tensor state = generator.get_state();
    give(std::string(static_cast<const char*>(state.const_data_ptr()), state.nbytes()));
  } else if (auto bytes = take()) {
    at::Tensor state = at::empty({int64_t(bytes->size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), bytes->data(), bytes->size());
    generator.set_state(state);
  }
  turns_.begin([] {});
  turns_.end();
}

SharedPrompt::AtTerminal::AtTerminal() {
  output_ = dup(STDOUT_FILENO);
  dup2(STDIN_FILENO, STDOUT_FILENO);
}

SharedPrompt::AtTerminal::~AtTerminal() {
  std::fflush(stdout);
  dup2(output_, STDOUT_FILENO);
  close(output_);
}

}  // namespace redco
