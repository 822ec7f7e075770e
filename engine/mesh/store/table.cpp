// The values of the run's store.

#include "table.h"

#include <redco/error.h>

#include <charconv>
#include <cstdint>
#include <exception>
#include <utility>

namespace redco::store {

namespace {

// The overhead of an entry in addition to key and value, so that the number of keys is bounded too.
constexpr size_t bytes_of_entry = 128;

int64_t number_of(const std::string& text) {
  int64_t number = 0;
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(failure == std::errc() && end == text.data() + text.size(), "\"", text.substr(0, 40),
          "\" is not a number");
  return number;
}

Message answer_if(bool is_so) { return {is_so ? Message::yes : Message::no}; }

}  // namespace

Message StoreTable::answer(const Message& request) {
  try {
    return answer_checked(request);
  } catch (const std::exception& error) {
    return {Message::failed, {error.what()}};
  }
}

const std::string* StoreTable::find(const std::string& key) const {
  auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void StoreTable::set(const std::string& key, std::string value) {
  const std::string* before = find(key);
  size_t freed = before != nullptr ? before->size() : 0;
  size_t needed = value.size() + (before != nullptr ? 0 : key.size() + bytes_of_entry);
  require(n_bytes_ - freed + needed <= most_bytes_, "the store of the run is full: it holds ",
          most_bytes_, " bytes at most");
  n_bytes_ = n_bytes_ - freed + needed;
  values_[key] = std::move(value);
}

Message StoreTable::answer_checked(const Message& request) {
  const auto& parts = request.parts;
  auto need = [&](bool has_parts) {
    require(has_parts, "request ", int(request.kind), " of the run's store has ", parts.size(),
            " parts");
  };
  switch (request.kind) {
    case Message::set:
      need(parts.size() % 2 == 0);
      for (size_t i = 0; i < parts.size(); i += 2) set(parts[i], parts[i + 1]);
      return {Message::yes};
    case Message::compare_set: {
      need(parts.size() == 3);
      const std::string* now = find(parts[0]);
      // As in c10d::TCPStore: a missing value equals an empty one, and for a missing key with a
      // nonempty expected value the answer is the expected value.
      if (now == nullptr && !parts[1].empty()) return {Message::yes, {parts[1]}};
      if (now != nullptr && *now != parts[1]) return {Message::yes, {*now}};
      set(parts[0], parts[2]);
      return {Message::yes, {parts[2]}};
    }
    case Message::get: {
      Message answer{Message::yes};
      size_t size = 0;
      for (const auto& key : parts) {
        const std::string* value = find(key);
        if (value == nullptr) return {Message::no};
        size += value->size();
        require(size <= longest_message, "these ", parts.size(), " values are too long together");
        answer.parts.push_back(*value);
      }
      return answer;
    }
    case Message::add: {
      need(parts.size() == 2);
      const std::string* now = find(parts[0]);
      auto before = now == nullptr ? uint64_t(0) : uint64_t(number_of(*now));
      std::string sum = std::to_string(int64_t(before + uint64_t(number_of(parts[1]))));
      set(parts[0], sum);
      return {Message::yes, {sum}};
    }
    case Message::append: {
      need(parts.size() == 2);
      const std::string* now = find(parts[0]);
      set(parts[0], now == nullptr ? parts[1] : *now + parts[1]);
      return {Message::yes};
    }
    case Message::remove: {
      need(parts.size() == 1);
      const std::string* now = find(parts[0]);
      if (now == nullptr) return {Message::no};
      n_bytes_ -= now->size() + parts[0].size() + bytes_of_entry;
      values_.erase(parts[0]);
      return {Message::yes};
    }
    case Message::check:
      for (const auto& key : parts)
        if (find(key) == nullptr) return answer_if(false);
      return answer_if(true);
    case Message::count:
      return {Message::yes, {std::to_string(values_.size())}};
    default:
      fail("there is no request ", int(request.kind));
  }
}

}  // namespace redco::store
