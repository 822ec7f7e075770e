#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// An image as TensorBoard takes it.
struct EncodedImage {
  std::string png;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
};

/// The event file of one process for TensorBoard, `events.out.tfevents.TIME.HOST.PID.N`: TFRecords
/// of Event messages (tensorflow/core/util/event.proto, framework/summary.proto), encoded by hand.
///
/// The file begins with a SessionLog START, at which TensorBoard drops what earlier files of the
/// folder have of later steps: a killed run may have got further than the checkpoint that this one
/// goes on from. So the file is made with the first number or image, which tells the step; texts of
/// no step wait for it.
class EventFile {
 public:
  explicit EventFile(std::string folder) : folder_(std::move(folder)) {}

  /// A scalar for each value, under `prefix` and its name.
  void scalars(int64_t step, const std::string& prefix,
               const std::map<std::string, double>& values);
  void text(int64_t step, const std::string& tag, const std::string& text);
  /// A text of no step of its own: it gets the one the file begins with, or the last one.
  void text(const std::string& tag, const std::string& text);
  void image(int64_t step, const std::string& tag, const EncodedImage& image);

 private:
  void append(int64_t step, std::string_view summary);

  std::string folder_;
  std::string path_;  // empty until there is a file
  int64_t step_ = 0;  // of the last event
  std::vector<std::string> waiting_;
};

}  // namespace redco
