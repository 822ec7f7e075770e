#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace redco {

/// Takes apart what a worker writes into a pipe, in whole lines. Of a line that is drawn over and
/// over, with carriage returns, the last state counts.
class WorkerOutput {
 public:
  using Take = std::function<void(std::string_view line)>;

  /// Reads `from`, which must not block, and closes it at its end.
  WorkerOutput(int from, Take take);
  /// Hands on a last line without an end too.
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  int descriptor() const { return from_; }
  /// Hands on what there is; false once there will be no more.
  bool pump();
  /// And what there is of a line without an end.
  void end_line();

 private:
  void hand_on(std::string_view line) const;

  int from_;
  Take take_;
  std::string buffer_;
};

/// Writes a line in one piece: those of several programs on one terminal do not mix.
void write_line(int to, std::string line);

}  // namespace redco
