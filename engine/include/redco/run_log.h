#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace redco {

class EventFile;

/// How far a long loop is.
struct ProgressState {
  std::string desc;
  int64_t done = 0;
  int64_t total = 0;
  double rate = 0;  ///< units per second
  std::string unit;
  double elapsed_seconds = 0;
  double eta_seconds = 0;
  std::optional<double> run_done = std::nullopt;  ///< of the whole run that this is a part of: 0..1
  double run_eta_seconds = 0;
  bool finished = false;
  std::map<std::string, double> postfix;
};

/// Where a run shows itself. The library never prints: the program supplies one.
class REDCO_API Console {
 public:
  virtual ~Console();
  /// A line for the reader, without the newline.
  virtual void line(std::string_view text) = 0;
  virtual void progress(const ProgressState& state) = 0;
};

/// Counts a loop and tells a Console about it, ten times a second at most. Its end finishes the
/// bar.
class REDCO_API ProgressBar {
 public:
  ProgressBar(std::shared_ptr<Console> console, std::string desc, int64_t total, std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// The part of a run that this loop is, from `begin` to `end` of 0..1: the bar also tells how far
  /// the run is.
  void set_part_of_run(double begin, double end) { part_of_run_ = {begin, end}; }

  /// `n` more units are done; `postfix` are the numbers to show beside.
  void advance(int64_t n, const std::map<std::string, double>& postfix = {});

 private:
  void show(bool finished);

  std::shared_ptr<Console> console_;
  ProgressState state_;
  std::optional<std::pair<double, double>> part_of_run_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
};

struct RunLogOptions {
  std::string workdir = {};  ///< made with its parents; empty: no files
  bool verbose = true;       ///< whether the console is shown anything
  std::shared_ptr<Console> console = {};
  int64_t process_id = 0;
  int64_t n_processes = 1;
  /// Whether processes other than 0, which show and write nothing else, have a log_RANK.txt each.
  bool log_all_processes = false;
  bool run_tensorboard = false;
};

/// The log of a run: `log.txt`, `metrics.jsonl`, TensorBoard's event file and what predictions are
/// saved in its work folder, lines and progress on its console.
class REDCO_API RunLog {
 public:
  /// Throws Error when the folder cannot be written.
  explicit RunLog(RunLogOptions options);
  ~RunLog();

  /// A message, to the console and to log.txt. With a title it is set off from the lines around,
  /// and is a text of TensorBoard's.
  void info(const std::string& text, const std::string& title = "",
            std::optional<int64_t> step = std::nullopt);

  /// One line of metrics.jsonl, `{"step":3,"loss":1.25}`. A number that is not finite is null.
  /// Throws Error when the file cannot be written; what was written before stays whole.
  void metrics(int64_t step, const std::map<std::string, double>& values);

  /// The same for an evaluation: its line has `"kind":"eval"`, TensorBoard's names begin with
  /// `eval_`. Also a message, and `eval_results_NAME.json`.
  void evaluation(int64_t step, const std::string& name,
                  const std::map<std::string, double>& values);

  /// `outputs_NAME.json`: a list of trees, in which a tensor of more than 1000 elements is only
  /// named by its type and shape. The first ten are also a text of TensorBoard's.
  void outputs(int64_t step, const std::string& name, const Tree& outputs);

  /// For TensorBoard alone: pixels as `encode_png` takes them.
  void image(int64_t step, const std::string& name, const at::Tensor& pixels);

  /// Whether anything but messages is written: by process 0 of a run with a work folder.
  bool writes_files() const { return options_.process_id == 0 && !options_.workdir.empty(); }

  std::unique_ptr<ProgressBar> progress(std::string desc, int64_t total, std::string unit);

 private:
  std::string path(const std::string& file) const;
  void append_metrics(int64_t step, const char* kind, const std::map<std::string, double>& values);

  RunLogOptions options_;
  std::unique_ptr<EventFile> events_;  // null: none
};

/// One line of at most `width` characters:
/// `Training 12% 120/1000 loss 2.31 lr 0.001 1.2k examples/s ETA 0:12`.
REDCO_API std::string format_progress(const ProgressState& state, size_t width);

}  // namespace redco
