#pragma once

#include "messages.h"

#include <string>
#include <unordered_map>

namespace redco::store {

/// The content of a run's store: values by key, as in c10d::Store, up to a number of bytes.
class StoreTable {
 public:
  explicit StoreTable(size_t most_bytes) : most_bytes_(most_bytes) {}
  /// Executes a request. Never throws because of its content: the answer is then `failed`.
  Message answer(const Message& request);

 private:
  Message answer_checked(const Message& request);
  void set(const std::string& key, std::string value);
  const std::string* find(const std::string& key) const;

  const size_t most_bytes_;
  size_t n_bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
};

}  // namespace redco::store
