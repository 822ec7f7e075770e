#include "torch.h"
#include "values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace redco::lua {

namespace {

// PyTorch's defaults (torch.set_printoptions).
constexpr int64_t threshold = 1000;
constexpr int64_t edge_items = 3;
constexpr int precision = 4;
constexpr size_t line_width = 80;

std::string printed(const char* format, int digits, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), format, digits, value);
  return buffer;
}

// How all elements of one tensor are written: PyTorch chooses one form for them together.
class Format {
 public:
  explicit Format(const at::Tensor& shown) {
    at::Tensor flat = shown.reshape({-1});
    if (!c10::isFloatingType(flat.scalar_type())) {
      for (int64_t i = 0; i < flat.numel(); ++i) width_ = std::max(width_, text(flat[i]).size());
      return;
    }
    std::vector<double> values;  // zeros, infinities and NaNs have no say
    for (int64_t i = 0; i < flat.numel(); ++i) {
      double value = flat[i].item<double>();
      if (std::isfinite(value) && value != 0) values.push_back(value);
    }
    double largest = 0;
    double smallest = INFINITY;
    for (double value : values) {
      largest = std::max(largest, std::abs(value));
      smallest = std::min(smallest, std::abs(value));
      integral_ &= value == std::ceil(value);
    }
    if (values.empty()) return;
    scientific_ = largest / smallest > 1000 || largest > 1e8 || (!integral_ && smallest < 1e-4);
    for (double value : values) width_ = std::max(width_, text(value).size());
  }

  std::string padded(const at::Tensor& element) const {
    std::string result = text(element);
    return std::string(width_ > result.size() ? width_ - result.size() : 0, ' ') + result;
  }
  size_t width() const { return width_; }

 private:
  std::string text(const at::Tensor& element) const {
    c10::ScalarType dtype = element.scalar_type();
    if (dtype == c10::kBool) return element.item<bool>() ? "True" : "False";
    if (c10::isIntegralType(dtype, false)) return std::to_string(element.item<int64_t>());
    if (c10::isComplexType(dtype)) {
      auto value = element.item<c10::complex<double>>();
      return printed("%.*f", precision, value.real()) + (value.imag() < 0 ? "-" : "+") +
             printed("%.*f", precision, std::abs(value.imag())) + "j";
    }
    return text(element.item<double>());
  }

  std::string text(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    if (scientific_) return printed("%.*e", precision, value);
    if (integral_) return printed("%.*f", 0, value) + ".";
    return printed("%.*f", precision, value);
  }

  bool integral_ = true;
  bool scientific_ = false;
  size_t width_ = 1;
};

// The corners of a large tensor, small enough to look at every element.
at::Tensor corners(const at::Tensor& tensor) {
  at::Tensor result = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (result.size(dim) > 2 * edge_items)
      result = at::cat({result.narrow(dim, 0, edge_items),
                        result.narrow(dim, result.size(dim) - edge_items, edge_items)},
                       dim);
  return result;
}

// One row; `cut` when its middle was taken out.
std::string row(const at::Tensor& tensor, bool cut, size_t indent, const Format& format) {
  std::vector<std::string> entries;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    if (cut && i == edge_items) entries.push_back(" ...");
    entries.push_back(format.padded(tensor[i]));
  }
  size_t per_line = std::max<size_t>(1, (line_width - indent) / (format.width() + 2));
  std::string text = "[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) text += i % per_line == 0 ? ",\n" + std::string(indent + 1, ' ') : ", ";
    text += entries[i];
  }
  return text + "]";
}

// `full_sizes` are those of the tensor before its middle was taken out.
std::string layout(const at::Tensor& tensor, at::IntArrayRef full_sizes, size_t indent,
                   const Format& format) {
  if (tensor.dim() == 0) return format.padded(tensor);
  bool cut = full_sizes[0] > tensor.size(0);
  if (tensor.dim() == 1) return row(tensor, cut, indent, format);
  std::string separator =
      "," + std::string(static_cast<size_t>(tensor.dim()) - 1, '\n') + std::string(indent + 1, ' ');
  std::string text = "[";
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    if (i > 0) text += separator;
    if (cut && i == edge_items) text += "..." + separator;
    text += layout(tensor[i], full_sizes.slice(1), indent + 1, format);
  }
  return text + "]";
}

std::string size_text(const at::Tensor& tensor) {
  std::string sizes;
  for (int64_t size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "size=(" + sizes + (tensor.dim() == 1 ? ",)" : ")");
}

}  // namespace

std::string format_tensor(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  c10::ScalarType dtype = tensor.scalar_type();
  bool has_elements = tensor.numel() > 0 && !tensor.is_meta();
  std::string suffix;
  if (!tensor.device().is_cpu()) suffix += ", device='" + tensor.device().str() + "'";
  if (tensor.is_meta() || (!has_elements && tensor.dim() != 1)) suffix += ", " + size_text(tensor);
  // Elements tell a float32, an int64 or a boolean by their look; nothing tells an empty tensor's.
  bool evident =
      dtype == c10::kFloat || (has_elements && (dtype == c10::kLong || dtype == c10::kBool));
  if (!evident) suffix += std::string(", dtype=") + dtype_name(dtype);
  if (tensor.grad_fn())
    suffix += ", grad_fn=<" + tensor.grad_fn()->name() + ">";
  else if (tensor.requires_grad())
    suffix += ", requires_grad=True";
  if (!has_elements)
    return std::string("tensor(") + (tensor.is_meta() ? "..." : "[]") + suffix + ")";
  at::Tensor shown = tensor.detach();
  if (tensor.numel() > threshold) shown = corners(shown);
  shown = shown.cpu();
  if (c10::isFloatingType(dtype)) shown = shown.to(c10::kDouble);
  constexpr size_t indent = 7;  // under the bracket after `tensor(`
  return "tensor(" + layout(shown, tensor.sizes(), indent, Format(shown)) + suffix + ")";
}

}  // namespace redco::lua
