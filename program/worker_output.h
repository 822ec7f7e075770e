#pragma once

#include <string>
#include <string_view>

namespace redco {

/// Hands on what a worker writes into a pipe, in whole lines with a prefix. Of a line that is drawn
/// over and over, with carriage returns, the last state comes out.
class WorkerOutput {
 public:
  /// Reads `from`, which must not block, and closes it at its end; writes to `to`.
  WorkerOutput(int from, int to, std::string prefix);
  /// Hands on a last line without an end too.
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  int descriptor() const { return from_; }
  /// Hands on what there is; false once there will be no more.
  bool pump();

 private:
  void hand_on();
  void write_line(std::string_view line) const;

  int from_;
  int to_;
  std::string prefix_;
  std::string buffer_;
};

}  // namespace redco
