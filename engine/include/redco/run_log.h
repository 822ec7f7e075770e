#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  /// Whether the finished bar stays on the screen. That of an evaluation does not: its results are
  /// logged.
  bool is_kept = true;
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
  ProgressBar(std::shared_ptr<Console> console, std::string desc, int64_t total, std::string unit,
              bool is_kept = true);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Sets the part of a run that this loop covers, from `begin` to `end` of 0..1; the bar then also
  /// shows the progress of the run.
  void set_part_of_run(double begin, double end) { part_of_run_ = {begin, end}; }

  /// Counts `n` units as done before the loop started: they are not part of its rate.
  void skip(int64_t n);

  /// Reports `n` more units as done; `postfix` holds numbers to show next to the bar.
  void advance(int64_t n, const std::map<std::string, double>& postfix = {});

 private:
  void show(bool finished);

  std::shared_ptr<Console> console_;
  ProgressState state_;
  int64_t n_skipped_ = 0;
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

  /// Writes a message to the console and to log.txt. With a title, `Title (step 7): message`, it is
  /// also written as a TensorBoard text.
  void info(const std::string& text, const std::string& title = "",
            std::optional<int64_t> step = std::nullopt);

  /// The same without a title, unless the message equals that of the last call.
  void info_if_new(const std::string& text);

  /// Writes a message to log.txt only.
  void note(const std::string& text);

  /// Appends a line to metrics.jsonl, `{"step":3,"loss":1.25}`. Non-finite numbers become null.
  /// Throws Error if the file cannot be written; earlier lines stay intact. TensorBoard's names
  /// begin with `system/` for what a Trainer measures of its steps, with `train/` for others
  /// without a slash.
  void metrics(int64_t step, const std::map<std::string, double>& values);

  /// The same for an evaluation: the line has `"kind":"eval"`, and TensorBoard's names begin with
  /// `eval/`. Also writes `eval_results_NAME.json` and a message with rounded numbers, in which
  /// those of `best` are marked.
  void evaluation(int64_t step, const std::string& name,
                  const std::map<std::string, double>& values,
                  const std::set<std::string>& best = {});

  /// Writes `outputs_NAME.json`: a list of trees, in which a large tensor is replaced by its dtype
  /// and shape (log/outputs_json.h). The first ten are also written as a TensorBoard text.
  void outputs(int64_t step, const std::string& name, const Tree& outputs);

  /// Writes an image to TensorBoard only; pixels are in the format of `encode_png`.
  void image(int64_t step, const std::string& name, const at::Tensor& pixels);

  /// Writes the distribution of the finite values of a tensor, in 64 buckets, to TensorBoard only.
  void histogram(int64_t step, const std::string& name, const at::Tensor& values);

  /// Writes settings of the run, numbers, strings and booleans by name, for TensorBoard's dashboard
  /// HPARAMS.
  void settings(const Tree::Dict& values);

  /// Whether this process writes files other than logs: true for process 0 of a run with a work
  /// folder.
  bool writes_files() const { return options_.process_id == 0 && !options_.workdir.empty(); }

  std::unique_ptr<ProgressBar> progress(std::string desc, int64_t total, std::string unit,
                                        bool is_kept = true);

 private:
  void write(const std::string& message, bool shows);
  std::string path(const std::string& file) const;
  void append_metrics(int64_t step, const char* kind, const std::map<std::string, double>& values);

  RunLogOptions options_;
  std::string last_info_if_new_;
  std::unique_ptr<io::EventFile> events_;  // null: none
};

/// Formats the progress as one line: `Epoch 0 / 3 12% loss 2.31 1.2k examples/s ETA 0:12`, then as
/// much of `(run 4%, ETA 1:40) 120/1000 lr 0.001` as fits into `width` characters.
REDCO_API std::string format_progress(const ProgressState& state, size_t width);

/// Formats a duration as `12:05` or `1:02:05`.
REDCO_API std::string format_duration(double seconds);

/// Formats a rate: 1234567 is `1.23M`.
REDCO_API std::string format_rate(double rate);

/// Formats a metric with four digits.
REDCO_API std::string format_metric(double value);

}  // namespace redco
