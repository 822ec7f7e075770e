#pragma once

#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::io {

/// An image in TensorBoard's format.
struct EncodedImage {
  std::string png;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
};

/// The distribution of numbers: how many are in each bucket, which ends at its limit.
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> limits, counts;
};

/// The TensorBoard event file of one process, `events.out.tfevents.TIME.HOST.PID.N`: TFRecords of
/// Event messages (tensorflow/core/util/event.proto, framework/summary.proto), encoded without a
/// protobuf library.
///
/// The file begins with a SessionLog START, at which TensorBoard drops later steps of earlier files
/// in the folder: a killed run may have got further than the checkpoint from which this one
/// resumes. The file is therefore created with the first number or image, which has a step; texts
/// without a step wait for it. Evaluations at the first step itself are kept.
class EventFile {
 public:
  explicit EventFile(std::string folder) : folder_(std::move(folder)) {}

  /// Whether no file has been created yet.
  bool is_new() const { return path_.empty(); }

  /// Lets the file begin at `step`, which an earlier process may have done already. TensorBoard
  /// drops everything at this step and later ones; `kept` are scalars at it by tag that stay.
  void resume(int64_t step, std::map<std::string, double> kept);

  /// Writes a scalar for each value by tag.
  void scalars(int64_t step, const std::map<std::string, double>& values);
  void text(int64_t step, const std::string& tag, const std::string& text);
  /// Writes a text without a step: it gets the first step of the file, or the last one written.
  void text(const std::string& tag, const std::string& text);
  void image(int64_t step, const std::string& tag, const EncodedImage& image);
  void histogram(int64_t step, const std::string& tag, const Histogram& histogram);
  /// Writes the settings of the run for the hparams dashboard: booleans, numbers and strings.
  void settings(const Tree::Dict& values);

 private:
  void append(int64_t step, std::string_view summary);
  void append_without_step(std::string summary);

  std::string folder_;
  std::string path_;  // empty until the file exists
  int64_t step_ = 0;  // of the last event
  std::optional<int64_t> resumed_;
  std::map<std::string, double> kept_;  // at the step `resumed_`
  std::vector<std::string> waiting_;
};

}  // namespace redco::io
