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

namespace io {
class EventFile;
}

/// The progress of a long loop.
struct ProgressState {
  std::string desc;
  int64_t done = 0;
  int64_t total = 0;
  double rate = 0;  ///< units per second
  std::string unit;
  double elapsed_seconds = 0;
  double eta_seconds = 0;
  std::optional<double> run_done =
      std::nullopt;  ///< progress of the whole run, 0..1, if this loop is a part of one
  double run_eta_seconds = 0;
  bool finished = false;
  std::map<std::string, double> postfix;
};

/// Displays the messages and progress of a run. The library never prints: the program supplies a
/// Console.
class REDCO_API Console {
 public:
  virtual ~Console();
  /// Shows a line, given without the newline.
  virtual void line(std::string_view text) = 0;
  virtual void progress(const ProgressState& state) = 0;
};

/// Counts the iterations of a loop and reports them to a Console at most ten times a second. The
/// destructor finishes the bar.
class REDCO_API ProgressBar {
 public:
  ProgressBar(std::shared_ptr<Console> console, std::string desc, int64_t total, std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Sets the part of a run that this loop covers, from `begin` to `end` of 0..1; the bar then also
  /// shows the progress of the run.
  void set_part_of_run(double begin, double end) { part_of_run_ = {begin, end}; }

  /// Reports `n` more units as done; `postfix` holds numbers to show next to the bar.
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
  std::string workdir = {};  ///< created with its parents; empty: no files
  bool verbose = true;       ///< whether to write to the console
  std::shared_ptr<Console> console = {};
  int64_t process_id = 0;
  int64_t n_processes = 1;
  /// Whether each process other than 0 writes a log_RANK.txt. They show and write nothing else.
  bool log_all_processes = false;
  bool run_tensorboard = false;
};

/// The log of a run: in its work folder `log.txt`, `metrics.jsonl`, TensorBoard's event file and
/// saved predictions; on its console lines and progress.
class REDCO_API RunLog {
 public:
  /// Throws Error if the folder cannot be written.
  explicit RunLog(RunLogOptions options);
  ~RunLog();

  /// Writes a message to the console and to log.txt. With a title it is set apart from other lines
  /// and is also written as a TensorBoard text.
  void info(const std::string& text, const std::string& title = "",
            std::optional<int64_t> step = std::nullopt);

  /// Appends a line to metrics.jsonl, `{"step":3,"loss":1.25}`. Non-finite numbers become null.
  /// Throws Error if the file cannot be written; earlier lines stay intact.
  void metrics(int64_t step, const std::map<std::string, double>& values);

  /// The same for an evaluation: the line has `"kind":"eval"`, and TensorBoard's names begin with
  /// `eval_`. Also writes a message and `eval_results_NAME.json`.
  void evaluation(int64_t step, const std::string& name,
                  const std::map<std::string, double>& values);

  /// Writes `outputs_NAME.json`: a list of trees, in which a large tensor is replaced by its dtype
  /// and shape (io/outputs_json.h). The first ten are also written as a TensorBoard text.
  void outputs(int64_t step, const std::string& name, const Tree& outputs);

  /// Writes an image to TensorBoard only; pixels are in the format of `encode_png`.
  void image(int64_t step, const std::string& name, const at::Tensor& pixels);

  /// Whether this process writes files other than logs: true for process 0 of a run with a work
  /// folder.
  bool writes_files() const { return options_.process_id == 0 && !options_.workdir.empty(); }

  std::unique_ptr<ProgressBar> progress(std::string desc, int64_t total, std::string unit);

 private:
  std::string path(const std::string& file) const;
  void append_metrics(int64_t step, const char* kind, const std::map<std::string, double>& values);

  RunLogOptions options_;
  std::unique_ptr<io::EventFile> events_;  // null: none
};

/// Formats the progress as one line of at most `width` characters: `Training 12% 120/1000 loss 2.31
/// lr 0.001 1.2k examples/s ETA 0:12`.
REDCO_API std::string format_progress(const ProgressState& state, size_t width);

}  // namespace redco
