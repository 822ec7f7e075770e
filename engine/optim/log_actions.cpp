#include "log_actions.h"

#include "../mesh/spmd_log.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>

namespace redco::train {

using namespace mesh;

namespace {

constexpr int64_t n_sampled = 64;

void append(std::string& text, double number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

// A digest of evenly spaced values; 0 for a tensor that is not a contiguous CPU tensor.
uint64_t digest_of_sample(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous()) return 0;
  auto bytes = static_cast<const char*>(tensor.const_data_ptr());
  int64_t n = tensor.numel();
  int64_t count = std::min(n, n_sampled);
  Digest digest;
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = count == 1 ? 0 : i * (n - 1) / (count - 1);
    digest.add(std::string_view(bytes + place * tensor.itemsize(), tensor.itemsize()));
  }
  return digest.value();
}

}  // namespace

void log_action(const char* what, int64_t number, const char* unit) {
  if (!SpmdLog::get().is_on()) return;
  SpmdLog::get().add(std::string(what) + " " + std::to_string(number) + " " + unit);
}

void log_batch(const Tree& batch) {
  if (!SpmdLog::get().is_on()) return;
  for_each_leaf(batch, [&](const std::string& path, const Tree& leaf) {
    std::string text = "has a batch with";
    if (!path.empty()) text.append(" '").append(path).append("' =");
    uint64_t digest = 0;
    if (leaf.is_tensor()) {
      append_type(text += " ", leaf.tensor().scalar_type(), leaf.tensor().sizes());
      digest = digest_of_sample(leaf.tensor());
    } else if (leaf.is<int64_t>()) {
      text += " " + std::to_string(leaf.as<int64_t>());
    } else if (leaf.is<double>()) {
      append(text += " ", leaf.as<double>());
    } else {
      return;
    }
    SpmdLog::get().add(std::move(text), digest);
  });
}

void log_params(const std::vector<NamedTensor>& params) {
  if (!SpmdLog::get().is_on()) return;
  SpmdLog::get().add("has " + std::to_string(params.size()) + " parameters");
  for (const auto& [name, param] : params) {
    std::string text = "has the parameter '" + name + "' = ";
    append_type(text, param.scalar_type(), param.sizes());
    SpmdLog::get().add(std::move(text));
  }
}

void log_names(const char* what, const std::vector<std::string>& names) {
  if (!SpmdLog::get().is_on()) return;
  Digest digest;
  for (const std::string& name : names) digest.add(name);
  std::string text = std::string(what) + " " + std::to_string(names.size()) + " parameters";
  if (!names.empty()) text += ", the first one '" + names.front() + "'";
  SpmdLog::get().add(std::move(text), digest.value());
}

void log_settings(const char* optimizer, const Settings& settings) {
  if (!SpmdLog::get().is_on()) return;
  for (const auto& [name, value] : settings) {
    std::string text = "updates by ";
    text.append(optimizer).append(" with ").append(name).append(" = ");
    append(text, value);
    SpmdLog::get().add(std::move(text), std::bit_cast<uint64_t>(value));
  }
}

}  // namespace redco::train
