// Splits a worker's output into lines.

#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace redco {

/// Splits the output that a worker writes to a pipe into whole lines. Of a line redrawn with
/// carriage returns, only the last state counts.
class WorkerOutput {
 public:
  using Take = std::function<void(std::string_view line)>;

  /// Reads `from`, which must be non-blocking, and closes it at the end.
  WorkerOutput(int from, Take take);
  /// Also passes on a last line without a newline.
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  int descriptor() const { return from_; }
  /// Passes on all complete lines. Returns false at the end of the output.
  bool pump();
  /// Also passes on an incomplete line.
  void end_line();

 private:
  void hand_on(std::string_view line) const;

  int from_;
  Take take_;
  std::string buffer_;
};

/// Writes a line in one call, so that lines of several programs on one terminal do not mix.
void write_line(int to, std::string line);

}  // namespace redco
