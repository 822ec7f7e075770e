// Predictions as readable JSON.

#include "outputs_json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace redco::io {

namespace {

using nlohmann::json;

// The limits for a list of numbers, and for a grid such as an image.
constexpr int64_t most_elements = 1000, most_in_grid = 32;

std::string digits(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.7g", value);
  return text;
}

// `value`, or a string if it is not finite.
json number(double value) { return std::isfinite(value) ? json(value) : json(digits(value)); }

json elements(const at::Tensor& tensor) {
  if (tensor.dim() > 0) {
    json list = json::array();
    for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(elements(tensor[i]));
    return list;
  }
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (tensor.is_floating_point()) {
    double value = tensor.item<double>();
    return number(std::isfinite(value) ? std::strtod(digits(value).c_str(), nullptr) : value);
  }
  return tensor.item<int64_t>();
}

json tensor_json(const at::Tensor& tensor) {
  if (tensor.numel() <= (tensor.dim() > 1 ? most_in_grid : most_elements) && !tensor.is_complex() &&
      !tensor.is_meta())
    return elements(tensor.detach().cpu());
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  return text.str();
}

json json_of(const Tree& tree) {
  if (tree.is_none()) return nullptr;
  if (tree.is_tensor()) return tree.tensor().defined() ? tensor_json(tree.tensor()) : nullptr;
  if (tree.is<bool>()) return tree.as<bool>();
  if (tree.is<int64_t>()) return tree.as<int64_t>();
  if (tree.is<double>()) return number(tree.as<double>());
  if (tree.is<std::string>()) return tree.as<std::string>();
  if (tree.is<Tree::List>()) {
    json list = json::array();
    for (const Tree& child : tree.as<Tree::List>()) list.push_back(json_of(child));
    return list;
  }
  json object = json::object();
  for (const auto& [key, child] : tree.as<Tree::Dict>()) object[key] = json_of(child);
  return object;
}

}  // namespace

std::string outputs_json(const Tree& outputs, size_t most) {
  json shown;
  if (outputs.is<Tree::List>()) {
    shown = json::array();
    for (const Tree& each : outputs.as<Tree::List>()) {
      if (shown.size() == most) break;
      shown.push_back(json_of(each));
    }
  } else {
    shown = json_of(outputs);
  }
  return shown.dump(4, ' ', false, json::error_handler_t::replace);
}

}  // namespace redco::io
