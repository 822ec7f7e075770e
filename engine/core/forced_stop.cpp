// Ends a program whose script does not return after a signal.

#include <redco/detail/forced_stop.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace redco {

namespace {

std::atomic<int> signal_of_end{0};

// Never destroyed: threads may outlive the end of main.
struct End {
  std::mutex mutex;
  std::function<void(int, const std::string&)> body;
};
End& end_of_program() {
  static End& made = *new End;
  return made;
}

}  // namespace

void set_forced_stop(std::function<void(int signal, const std::string& text)> end) {
  std::lock_guard lock(end_of_program().mutex);
  end_of_program().body = std::move(end);
}

bool has_forced_stop() {
  std::lock_guard lock(end_of_program().mutex);
  return end_of_program().body != nullptr;
}

void force_stop(int signal, const std::string& text) {
  std::lock_guard lock(end_of_program().mutex);
  if (end_of_program().body) end_of_program().body(signal, text);
}

int asked_to_end() noexcept { return signal_of_end; }
void note_asked_to_end(int signal) noexcept { signal_of_end = signal; }

}  // namespace redco
