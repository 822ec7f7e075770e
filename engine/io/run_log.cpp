// Messages, metrics and progress of a run.

#include <redco/run_log.h>

#include "append_file.h"
#include "atomic_file.h"
#include "outputs_json.h"
#include "tensorboard.h"

#include <redco/error.h>
#include <redco/image.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

namespace redco {

using namespace io;

namespace {

std::string clock_text(double seconds) {
  auto whole = int64_t(std::min(seconds, 3.6e8));
  char text[40];
  if (whole >= 3600)
    std::snprintf(text, sizeof(text), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof(text), "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

std::string short_number(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// 1234567 -> 1.23M
std::string rate_text(double rate) {
  if (rate >= 1e6) return short_number("%.3gM", rate / 1e6);
  if (rate >= 1e3) return short_number("%.3gk", rate / 1e3);
  return short_number("%.3g", rate);
}

// Non-finite numbers become null, because JSON lacks them.
nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
}

std::string dump(const nlohmann::ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Console::~Console() = default;

ProgressBar::ProgressBar(std::shared_ptr<Console> console, std::string desc, int64_t total,
                         std::string unit)
    : console_(std::move(console)), start_(std::chrono::steady_clock::now()), shown_(start_) {
  state_.desc = std::move(desc);
  state_.total = total;
  state_.unit = std::move(unit);
}

ProgressBar::~ProgressBar() { show(true); }

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
  state_.rate = elapsed.count() > 0 ? double(state_.done) / elapsed.count() : 0;
  state_.eta_seconds = state_.rate > 0 ? double(state_.total - state_.done) / state_.rate : 0;
  if (part_of_run_ && state_.total > 0) {
    auto [begin, end] = *part_of_run_;
    double here = (end - begin) * double(state_.done) / double(state_.total);
    state_.run_done = begin + here;
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

void RunLog::info(const std::string& text, const std::string& title, std::optional<int64_t> step) {
  if (!options_.console && options_.workdir.empty()) return;
  std::string message = text;
  if (!title.empty()) {
    std::string head = "### " + title + (step ? " (step " + std::to_string(*step) + ")" : "");
    message = "\n" + std::string(42, '=') + "\n" + head + "\n" + std::string(42, '-') + "\n" +
              text + "\n" + std::string(42, '=');
  }
  std::time_t now = std::time(nullptr);
  std::tm local;
  localtime_r(&now, &local);
  char stamp[40];
  std::strftime(stamp, sizeof(stamp), "%m/%d/%Y %H:%M:%S", &local);
  std::string rank = std::to_string(options_.process_id);
  std::string line = std::string("[") + stamp + " - redco - Process Index: " + rank +
                     " (#Processes: " + std::to_string(options_.n_processes) + ") - INFO] " +
                     message;
  if (options_.console) options_.console->line(line);
  if (options_.workdir.empty()) return;
  append_to_file(path(options_.process_id == 0 ? "log.txt" : "log_" + rank + ".txt"), line + "\n");
  if (!events_ || title.empty()) return;
  if (step)
    events_->text(*step, title, text);
  else
    events_->text(title, text);
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

void RunLog::metrics(int64_t step, const std::map<std::string, double>& values) {
  if (!writes_files()) return;
  append_metrics(step, nullptr, values);
  if (events_) events_->scalars(step, "", values);
}

void RunLog::evaluation(int64_t step, const std::string& name,
                        const std::map<std::string, double>& values) {
  nlohmann::ordered_json results = nlohmann::ordered_json::object();
  for (const auto& [key, value] : values) results[key] = json_number(value);
  std::string text = dump(results, 4);
  info(text, "Eval results", step);
  if (!writes_files()) return;
  append_metrics(step, "eval", values);
  if (events_) events_->scalars(step, "eval_", values);
  write_file(path("eval_results_" + name + ".json"), text + "\n");
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

std::unique_ptr<ProgressBar> RunLog::progress(std::string desc, int64_t total, std::string unit) {
  return std::make_unique<ProgressBar>(options_.console, std::move(desc), total, std::move(unit));
}

std::string format_progress(const ProgressState& state, size_t width) {
  double percent = state.total > 0 ? 100.0 * double(state.done) / double(state.total) : 0;
  std::string text = state.desc + short_number(" %.0f%% ", percent) + std::to_string(state.done) +
                     "/" + std::to_string(state.total);
  for (const auto& [name, value] : state.postfix)
    text += " " + name + " " + short_number("%.4g", value);
  text += " " + rate_text(state.rate) + " " + state.unit + "/s ";
  text += state.finished ? "in " + clock_text(state.elapsed_seconds)
                         : "ETA " + clock_text(state.eta_seconds);
  if (state.run_done)
    text += short_number(" (run %.0f%%", 100 * *state.run_done) +
            (state.finished ? ")" : " ETA " + clock_text(state.run_eta_seconds) + ")");
  if (text.size() > width) text = text.substr(0, width);
  return text;
}

}  // namespace redco
