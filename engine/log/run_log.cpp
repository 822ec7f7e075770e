// Messages, metrics and progress of a run.

#include <redco/run_log.h>

#include "../io/append_file.h"
#include "../io/atomic_file.h"
#include "../io/output_file.h"
#include "outputs_json.h"
#include "resumed_metrics.h"
#include "tensorboard.h"

#include <redco/detail/article.h>
#include <redco/detail/notices.h>
#include <redco/error.h>
#include <redco/image.h>

#include <ATen/ops/full.h>
#include <ATen/ops/histc.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace redco {

using namespace io;

namespace {

std::string formatted(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// Non-finite numbers become null, because JSON lacks them.
nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
}

std::string dump(const nlohmann::ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string time_text(const char* format) {
  std::time_t now = std::time(nullptr);
  std::tm local;
  localtime_r(&now, &local);
  char text[40];
  std::strftime(text, sizeof(text), format, &local);
  return text;
}

}  // namespace

std::string format_duration(double seconds) {
  auto whole = int64_t(std::min(seconds, 3.6e8));
  char text[40];
  if (whole >= 3600)
    std::snprintf(text, sizeof(text), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof(text), "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

std::string format_rate(double rate) {
  if (rate >= 1e6) return formatted("%.3gM", rate / 1e6);
  if (rate >= 1e3) return formatted("%.3gk", rate / 1e3);
  return formatted("%.3g", rate);
}

std::string format_metric(double value) { return formatted("%.4g", value); }

Console::~Console() = default;

ProgressBar::ProgressBar(std::shared_ptr<Console> console, std::string desc, int64_t total,
                         std::string unit, bool is_kept)
    : console_(std::move(console)), start_(std::chrono::steady_clock::now()), shown_(start_) {
  state_.desc = std::move(desc);
  state_.total = total;
  state_.unit = std::move(unit);
  state_.is_kept = is_kept;
}

ProgressBar::~ProgressBar() { show(true); }

void ProgressBar::skip(int64_t n) {
  state_.done += n;
  n_skipped_ += n;
}

void ProgressBar::advance(int64_t n, const std::map<std::string, double>& postfix) {
  state_.done += n;
  if (!console_) return;
  if (!postfix.empty()) state_.postfix = postfix;
  auto now = std::chrono::steady_clock::now();
  if (now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  show(false);
}

void ProgressBar::show(bool finished) {
  if (!console_) return;
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  state_.elapsed_seconds = elapsed.count();
  state_.rate = elapsed.count() > 0 ? double(state_.done - n_skipped_) / elapsed.count() : 0;
  state_.eta_seconds = state_.rate > 0 ? double(state_.total - state_.done) / state_.rate : 0;
  if (part_of_run_ && state_.total > 0) {
    auto [begin, end] = *part_of_run_;
    double of_one = (end - begin) / double(state_.total);
    double here = of_one * double(state_.done - n_skipped_);
    state_.run_done = begin + of_one * double(state_.done);
    state_.run_eta_seconds = here > 0 ? elapsed.count() * (1 - *state_.run_done) / here : 0;
  }
  state_.finished = finished;
  console_->progress(state_);
}

RunLog::RunLog(RunLogOptions options) : options_(std::move(options)) {
  bool is_silent = options_.process_id != 0 && !options_.log_all_processes;
  if (is_silent) options_.workdir.clear();
  if (options_.process_id != 0 || !options_.verbose) options_.console = nullptr;
  if (options_.workdir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.workdir, error);
  require(!error, "cannot make the work folder ", options_.workdir, ": ", error.message());
  if (options_.run_tensorboard && options_.process_id == 0)
    events_ = std::make_unique<EventFile>(options_.workdir);
}

RunLog::~RunLog() = default;

std::string RunLog::path(const std::string& file) const { return options_.workdir + "/" + file; }

void RunLog::write(const std::string& message, bool shows) {
  if (shows && options_.console) options_.console->line(time_text("[%H:%M:%S] ") + message);
  if (options_.workdir.empty()) return;
  std::string file =
      options_.process_id == 0 ? "log.txt" : "log_" + std::to_string(options_.process_id) + ".txt";
  try {
    append_to_file(path(file), time_text("[%Y-%m-%d %H:%M:%S] ") + message + "\n");
  } catch (const NoSpace& error) {
    // A message about a full disk must not fail itself.
    static std::atomic<bool> was_shown{false};
    if (!was_shown.exchange(true))
      notice(std::string(error.what()) + "; messages are only shown while the disk is full");
  }
}

void RunLog::note(const std::string& text) { write(text, false); }

void RunLog::info(const std::string& text, const std::string& title, std::optional<int64_t> step) {
  std::string head = title;
  if (step)
    head = title.empty() ? "Step " + std::to_string(*step)
                         : title + " (step " + std::to_string(*step) + ")";
  bool has_lines = text.find('\n') != std::string::npos;
  write(head.empty() ? text : head + (has_lines ? ":\n" : ": ") + text, true);
  if (!events_ || title.empty()) return;
  if (step)
    events_->text(*step, title, text);
  else
    events_->text(title, text);
}

void RunLog::info_if_new(const std::string& text) {
  if (std::exchange(last_info_if_new_, text) != text) info(text);
}

void RunLog::append_metrics(int64_t step, const char* kind,
                            const std::map<std::string, double>& values) {
  nlohmann::ordered_json line;
  line["step"] = step;
  if (kind != nullptr) line["kind"] = kind;
  for (const auto& [name, value] : values)
    if (name != "step") line[name] = json_number(value);
  append_to_file(path("metrics.jsonl"), dump(line) + "\n");
}

namespace {

// The tag of a step's metric. TensorBoard groups tags by what is before the slash.
std::string step_tag(const std::string& name) {
  static const std::set<std::string> measured = {// by train/measures/step_meter.h
                                                 "collate_seconds",     "collective_seconds",
                                                 "examples_per_second", "gathered_bytes",
                                                 "memory_bytes",        "mfu",
                                                 "peak_memory_bytes",   "reserved_memory_bytes",
                                                 "step_seconds",        "tokens_per_second"};
  if (name.find('/') != std::string::npos) return name;
  return (measured.contains(name) ? "system/" : "train/") + name;
}

// Reads from metrics.jsonl the evaluations and a script's own metrics at `step`, by tag.
std::map<std::string, double> logged_at(const std::string& path, int64_t step) {
  std::map<std::string, double> by_tag;
  visit_kept_metrics(path, step, [&](const std::string&, const nlohmann::json& line) {
    for (const auto& [name, value] : line.items())
      if (value.is_number() && name != "step")
        by_tag[line.contains("kind") ? "eval/" + name : step_tag(name)] = value.get<double>();
  });
  return by_tag;
}

}  // namespace

void RunLog::metrics(int64_t step, const std::map<std::string, double>& values) {
  if (!writes_files()) return;
  if (events_ && events_->is_new() && step > 0 && values.contains("step_seconds"))
    events_->resume(step, logged_at(path("metrics.jsonl"), step));
  append_metrics(step, nullptr, values);
  if (!events_) return;
  std::map<std::string, double> by_tag;
  for (const auto& [name, value] : values) by_tag[step_tag(name)] = value;
  events_->scalars(step, by_tag);
}

void RunLog::evaluation(int64_t step, const std::string& name,
                        const std::map<std::string, double>& values,
                        const std::set<std::string>& best) {
  nlohmann::ordered_json results = nlohmann::ordered_json::object();
  std::string text;
  for (const auto& [key, value] : values) {
    results[key] = json_number(value);
    text += (text.empty() ? "" : ", ") + key + " " + format_metric(value);
    if (best.contains(key)) text += " (best)";
  }
  info(text, "Eval results", step);
  if (!writes_files()) return;
  append_metrics(step, "eval", values);
  if (events_) {
    std::map<std::string, double> by_tag;
    for (const auto& [key, value] : values) by_tag["eval/" + key] = value;
    events_->scalars(step, by_tag);
  }
  write_file(path("eval_results_" + name + ".json"), dump(results, 4) + "\n");
}

void RunLog::outputs(int64_t step, const std::string& name, const Tree& outputs) {
  if (!writes_files()) return;
  require(name.find('/') == std::string::npos, "outputs: desc = \"", name,
          "\" is part of a file's name: leave out the /");
  write_file(path("outputs_" + name + ".json"), outputs_json(outputs) + "\n");
  if (events_) events_->text(step, "Output Samples", outputs_json(outputs, 10));
}

void RunLog::image(int64_t step, const std::string& name, const at::Tensor& pixels) {
  if (options_.process_id != 0) return;
  std::string png = encode_png("log_image: " + name, pixels);
  if (events_)
    events_->image(
        step, name,
        {std::move(png), pixels.size(-2), pixels.size(-1), pixels.dim() == 2 ? 1 : pixels.size(0)});
}

void RunLog::histogram(int64_t step, const std::string& name, const at::Tensor& values) {
  if (!events_) return;
  at::Tensor numbers = values.detach().to(at::kCPU, at::kDouble).flatten();
  numbers = numbers.masked_select(numbers.isfinite());
  if (numbers.numel() == 0) return;
  io::Histogram histogram;
  histogram.min = numbers.min().item<double>();
  histogram.max = numbers.max().item<double>();
  histogram.count = double(numbers.numel());
  histogram.sum = numbers.sum().item<double>();
  histogram.sum_of_squares = numbers.square().sum().item<double>();
  constexpr int64_t n_buckets = 64;
  int64_t n = histogram.min < histogram.max ? n_buckets : 1;
  at::Tensor counts = n == 1 ? at::full({1}, histogram.count, at::kDouble)
                             : at::histc(numbers, n, histogram.min, histogram.max);
  for (int64_t i = 0; i < n; ++i) {
    double part = double(i + 1) / double(n);
    histogram.limits.push_back(histogram.min + part * (histogram.max - histogram.min));
    histogram.counts.push_back(counts[i].item<double>());
  }
  events_->histogram(step, name, histogram);
}

void RunLog::settings(const Tree::Dict& values) {
  for (const auto& [name, value] : values)
    require(
        value.is<bool>() || value.is<int64_t>() || value.is<double>() || value.is<std::string>(),
        "log_hparams: ", name, " is ", with_article(value.kind()),
        ", expected a number, a string or a boolean");
  if (events_) events_->settings(values);
}

std::unique_ptr<ProgressBar> RunLog::progress(std::string desc, int64_t total, std::string unit,
                                              bool is_kept) {
  return std::make_unique<ProgressBar>(options_.console, std::move(desc), total, std::move(unit),
                                       is_kept);
}

std::string format_progress(const ProgressState& state, size_t width) {
  double percent = state.total > 0 ? 100.0 * double(state.done) / double(state.total) : 0;
  auto metric = [](const std::string& name, double value) {
    return name + " " + format_metric(value);
  };
  // The most important parts come first: a narrow line leaves out the last ones.
  std::vector<std::string> parts{state.desc + formatted(" %.0f%%", percent)};
  std::map<std::string, double> others = state.postfix;
  for (const char* name : {"loss", "reward"})
    if (auto found = others.extract(name)) parts.push_back(metric(name, found.mapped()));
  parts.push_back(format_rate(state.rate) + " " + state.unit + "/s");
  parts.push_back(state.finished ? "in " + format_duration(state.elapsed_seconds)
                                 : "ETA " + format_duration(state.eta_seconds));
  if (state.run_done)
    parts.push_back(
        formatted("(run %.0f%%", 100 * *state.run_done) +
        (state.finished ? ")" : ", ETA " + format_duration(state.run_eta_seconds) + ")"));
  parts.push_back(std::to_string(state.done) + "/" + std::to_string(state.total));
  // Plain names before "clip_ratio/...", of which there are many.
  for (bool has_slash : {false, true})
    for (const auto& [name, value] : others)
      if ((name.find('/') != name.npos) == has_slash) parts.push_back(metric(name, value));
  std::string text = parts.front().substr(0, width);
  for (size_t i = 1; i < parts.size() && text.size() + 1 + parts[i].size() <= width; ++i)
    text += " " + parts[i];
  return text;
}

}  // namespace redco
