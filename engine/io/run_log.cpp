#include <redco/run_log.h>

#include <redco/error.h>

#include <fcntl.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

namespace redco {

namespace {

std::string clock_text(double seconds) {
  auto whole = static_cast<int64_t>(std::min(seconds, 3.6e8));
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
  state_.rate = elapsed.count() > 0 ? static_cast<double>(state_.done) / elapsed.count() : 0;
  state_.eta_seconds =
      state_.rate > 0 ? static_cast<double>(state_.total - state_.done) / state_.rate : 0;
  state_.finished = finished;
  console_->progress(state_);
}

RunLog::RunLog(std::string workdir, bool verbose, std::shared_ptr<Console> console,
               int64_t n_processes)
    : workdir_(std::move(workdir)),
      verbose_(verbose),
      console_(std::move(console)),
      n_processes_(n_processes) {
  if (workdir_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(workdir_, error);
  require(!error, "cannot make the work folder ", workdir_, ": ", error.message());
}

void RunLog::append(const std::string& file, const std::string& text) const {
  if (workdir_.empty()) return;
  std::string path = workdir_ + "/" + file;
  int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  require(descriptor >= 0, "cannot write ", path, ": ", std::strerror(errno));
  off_t before = lseek(descriptor, 0, SEEK_END);
  // One write: lines of several logs of one folder do not mix.
  ssize_t written = write(descriptor, text.data(), text.size());
  int cause = written < 0 ? errno : ENOSPC;
  bool whole = written == static_cast<ssize_t>(text.size());
  // Half a line would spoil the file for its readers.
  if (!whole && written > 0 && ftruncate(descriptor, before) != 0) cause = errno;
  close(descriptor);
  require(whole, "cannot write ", path, ": ", std::strerror(cause));
}

void RunLog::info(const std::string& text, const std::string& title, std::optional<int64_t> step) {
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
  std::string line = std::string("[") + stamp +
                     " - redco - Process Index: 0 (#Processes: " + std::to_string(n_processes_) +
                     ") - INFO] " + message;
  if (verbose_ && console_) console_->line(line);
  append("log.txt", line + "\n");
}

void RunLog::append_metrics(int64_t step, const char* kind,
                            const std::map<std::string, double>& values) {
  if (workdir_.empty()) return;
  nlohmann::ordered_json line;
  line["step"] = step;
  if (kind != nullptr) line["kind"] = kind;
  for (const auto& [name, value] : values)
    if (name != "step") line[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
  append("metrics.jsonl",
         line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void RunLog::metrics(int64_t step, const std::map<std::string, double>& values) {
  append_metrics(step, nullptr, values);
}

void RunLog::evaluation(int64_t step, const std::map<std::string, double>& values) {
  append_metrics(step, "eval", values);
  std::string line = "Evaluation (step " + std::to_string(step) + "):";
  for (const auto& [name, value] : values) line += " " + name + " " + short_number("%.4g", value);
  info(line);
}

std::unique_ptr<ProgressBar> RunLog::progress(std::string desc, int64_t total, std::string unit) {
  return std::make_unique<ProgressBar>(verbose_ ? console_ : nullptr, std::move(desc), total,
                                       std::move(unit));
}

std::string format_progress(const ProgressState& state, size_t width) {
  double percent = state.total > 0
                       ? 100.0 * static_cast<double>(state.done) / static_cast<double>(state.total)
                       : 0;
  std::string text = state.desc + short_number(" %.0f%% ", percent) + std::to_string(state.done) +
                     "/" + std::to_string(state.total);
  for (const auto& [name, value] : state.postfix)
    text += " " + name + " " + short_number("%.4g", value);
  text += " " + rate_text(state.rate) + " " + state.unit + "/s ";
  text += state.finished ? "in " + clock_text(state.elapsed_seconds)
                         : "ETA " + clock_text(state.eta_seconds);
  if (text.size() > width) text = text.substr(0, width);
  return text;
}

}  // namespace redco
