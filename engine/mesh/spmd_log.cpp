// The log of actions that all processes must perform alike, and its comparison.

#include "spmd_log.h"

#include <redco/group.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace redco::mesh {

namespace {

// A step of a large model makes a few hundred entries, or a few thousand with REDCO_CHECK_SPMD=1.
constexpr size_t most_entries = 4096;

std::atomic<std::string (*)()> call_site_function = nullptr;

thread_local bool logs_draws = false;

void append_number(std::string& text, uint64_t number, int base = 16) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number, base).ptr);
}

}  // namespace

Digest& Digest::add(std::string_view text) {
  add(uint64_t(text.size()));
  for (char letter : text) add(uint64_t(static_cast<unsigned char>(letter)));
  return *this;
}

Digest& Digest::add(c10::IntArrayRef numbers) {
  add(uint64_t(numbers.size()));
  for (int64_t number : numbers) add(uint64_t(number));
  return *this;
}

SpmdLog& SpmdLog::get() {
  static auto& log = *new SpmdLog;  // threads may outlive `main`
  return log;
}

void SpmdLog::clear() {
  std::lock_guard lock(mutex_);
  mark_ = {};
  newest_.clear();
}

const SpmdLog::Entry& SpmdLog::append(Entry entry) {
  mark_.digest = Digest().add(mark_.digest).add(entry.digest).value();
  entry.index = mark_.count++;
  entry.after = mark_.digest;
  size_t place = size_t(entry.index) % most_entries;
  if (place == newest_.size())
    newest_.push_back(std::move(entry));
  else
    newest_[place] = std::move(entry);
  return newest_[place];
}

void SpmdLog::add(std::string text, uint64_t digest) {
  if (!is_on()) return;
  Entry entry;
  entry.digest = Digest().add(text).add(digest).value();
  entry.site = call_site();
  entry.text = std::move(text);
  std::lock_guard lock(mutex_);
  append(std::move(entry));
}

uint64_t SpmdLog::add_collective(std::string text, uint64_t digest, int64_t group,
                                 uint64_t digest_in_group) {
  Entry entry;
  entry.digest = digest;
  entry.group = group;
  entry.digest_in_group = digest_in_group;
  entry.site = call_site();
  entry.text = std::move(text);
  std::lock_guard lock(mutex_);
  const uint64_t after =
      is_paused_ ? Digest().add(mark_.digest).add(digest).value() : append(std::move(entry)).after;
  return Digest().add(after).add(digest_in_group).value();
}

SpmdLog::Mark SpmdLog::mark() const {
  std::lock_guard lock(mutex_);
  return mark_;
}

std::optional<uint64_t> SpmdLog::digest_after(int64_t count) const {
  std::lock_guard lock(mutex_);
  if (count <= 0 || count > mark_.count) return std::nullopt;
  const Entry& last = newest_[size_t(count - 1) % most_entries];
  if (last.index != count - 1) return std::nullopt;
  return last.after;
}

// A line for each entry: index digest group digest_in_group site TAB text.
std::string SpmdLog::packed() const {
  std::lock_guard lock(mutex_);
  std::string packed;
  int64_t first = mark_.count - int64_t(newest_.size());
  for (int64_t index = first; index < mark_.count; ++index) {
    const Entry& entry = newest_[size_t(index) % most_entries];
    for (uint64_t number :
         {uint64_t(index), entry.digest, uint64_t(entry.group), entry.digest_in_group}) {
      append_number(packed, number);
      packed += ' ';
    }
    for (const std::string* part : {&entry.site, &entry.text}) {
      size_t from = packed.size();
      packed += *part;
      std::replace_if(
          packed.begin() + int64_t(from), packed.end(),
          [](char letter) { return letter == '\t' || letter == '\n'; }, ' ');
      packed += part == &entry.site ? '\t' : '\n';
    }
  }
  return packed;
}

std::vector<SpmdLog::Entry> SpmdLog::unpacked(const std::string& packed) {
  std::vector<Entry> entries;
  const char* at = packed.c_str();
  auto number = [&] {
    char* end = nullptr;
    uint64_t read = std::strtoull(at, &end, 16);
    at = end + 1;
    return read;
  };
  const char* end = packed.c_str() + packed.size();
  while (at < end) {
    Entry entry;
    entry.index = int64_t(number());
    entry.digest = number();
    entry.group = int64_t(number());
    entry.digest_in_group = number();
    const char* tab = std::find(at, end, '\t');
    const char* line_end = std::find(tab, end, '\n');
    if (line_end == end) break;
    entry.site.assign(at, tab);
    entry.text.assign(tab + 1, line_end);
    at = line_end + 1;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::optional<std::string> SpmdLog::first_difference(const std::vector<std::string>& logs) {
  std::vector<std::vector<Entry>> all;
  for (const std::string& log : logs) all.push_back(unpacked(log));
  auto find = [&](size_t rank, int64_t index) -> const Entry* {
    if (rank >= all.size() || all[rank].empty()) return nullptr;
    int64_t place = index - all[rank].front().index;
    return place >= 0 && place < int64_t(all[rank].size()) ? &all[rank][size_t(place)] : nullptr;
  };
  struct Pair {
    const Entry *a = nullptr, *b = nullptr;
    size_t rank_a = 0, rank_b = 0;
  } found;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const Entry& entry : all[rank]) {
      if (found.a && entry.index >= found.a->index) break;
      const Entry* of_first = find(0, entry.index);
      const Entry* of_group = entry.group < 0 ? nullptr : find(size_t(entry.group), entry.index);
      if (of_first && of_first->digest != entry.digest)
        found = {of_first, &entry, 0, rank};
      else if (of_group && of_group->digest == entry.digest && of_group->group == entry.group &&
               of_group->digest_in_group != entry.digest_in_group)
        found = {of_group, &entry, size_t(entry.group), rank};
    }
  }
  if (!found.a) return std::nullopt;
  auto story = [](const Pair& pair) {
    auto half = [](size_t rank, const Entry& entry) {
      return "process " + std::to_string(rank) + " " + entry.text +
             (entry.site.empty() ? "" : " at " + entry.site);
    };
    return half(pair.rank_a, *pair.a) + ", but " + half(pair.rank_b, *pair.b);
  };
  std::string text = "the processes diverged: " + story(found);
  if (found.a->text == found.b->text) text += ", with other values";
  // If one process made extra actions, later entries were compared with the wrong ones. Finds an
  // earlier entry that was made at another site.
  for (const Entry& entry : all[found.rank_a]) {
    if (entry.index >= found.a->index) break;
    const Entry* other = find(found.rank_b, entry.index);
    if (!other || other->site == entry.site) continue;
    text += ". Before that, " + story({&entry, other, found.rank_a, found.rank_b});
    break;
  }
  text +=
      ". Every process must make the same calls in the same order: a call that communicates, draws "
      "random numbers or changes the training must not depend on the process";
  if (!found.a->site.empty() && found.a->site == found.b->site)
    text +=
        " (next visits a table in another order in each process, and so does pairs if the keys are "
        "tables or functions)";
  return text;
}

void append_type(std::string& text, at::ScalarType type, c10::IntArrayRef sizes) {
  text += c10::toString(type);
  text += '[';
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    append_number(text, uint64_t(sizes[i]), 10);
  }
  text += ']';
}

LogDraws::LogDraws(bool logs) : outer_(std::exchange(logs_draws, logs)) {}

LogDraws::~LogDraws() { logs_draws = outer_; }

void log_draw(uint64_t key, uint64_t count) {
  if (!logs_draws || !SpmdLog::get().is_on()) return;
  SpmdLog::get().add("draws random numbers", Digest().add(key).add(count).value());
}

std::string_view& current_operator() {
  thread_local std::string_view name;
  return name;
}

}  // namespace redco::mesh

namespace redco {

void set_call_site(std::string (*site)()) { mesh::call_site_function = site; }

std::string call_site() {
  auto* site = mesh::call_site_function.load();
  return site != nullptr ? site() : "";
}

}  // namespace redco
