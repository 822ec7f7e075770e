// Formats tensors like PyTorch.

#include "state/values.h"
#include "torch.h"

#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
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

// The number format of a tensor, or of its real or imaginary part. Like PyTorch, all elements have
// the same format.
class Format {
 public:
  explicit Format(const at::Tensor& shown) {
    at::Tensor flat = shown.reshape({-1});
    if (!shown.is_floating_point()) {
      for (int64_t i = 0; i < flat.numel(); ++i) width_ = std::max(width_, text(flat[i]).size());
      return;
    }
    std::vector<double> values;  // without zeros, infinities and NaNs
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
    scientific_ = largest / smallest > 1000 || largest > 1e8 || smallest < 1e-4;
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
    if (dtype == c10::kUInt64) return std::to_string(element.item().toUInt64());
    if (c10::isIntegralType(dtype, false)) return std::to_string(element.item<int64_t>());
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

// The format of elements of any type; a complex number has two parts.
class ElementFormat {
 public:
  explicit ElementFormat(const at::Tensor& shown)
      : real_(shown.is_complex() ? at::real(shown) : shown) {
    if (shown.is_complex()) imaginary_.emplace(at::imag(shown));
  }

  std::string text(const at::Tensor& element) const {
    if (!imaginary_) return real_.padded(element);
    std::string imaginary = imaginary_->padded(at::imag(element)) + "j";
    imaginary.erase(0, imaginary.find_first_not_of(' '));
    return real_.padded(at::real(element)) + (imaginary[0] == '-' ? "" : "+") + imaginary;
  }
  size_t width() const { return real_.width() + (imaginary_ ? imaginary_->width() + 1 : 0); }

 private:
  Format real_;
  std::optional<Format> imaginary_;
};

// Returns the corners of a large tensor, so that few elements are read.
at::Tensor corners(const at::Tensor& tensor) {
  at::Tensor result = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (result.size(dim) > 2 * edge_items)
      result = at::cat({result.narrow(dim, 0, edge_items),
                        result.narrow(dim, result.size(dim) - edge_items, edge_items)},
                       dim);
  return result;
}

// Formats one row; `cut` if its middle is elided.
std::string row(const at::Tensor& tensor, bool cut, size_t indent, const ElementFormat& format) {
  std::vector<std::string> entries;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    if (cut && i == edge_items) entries.push_back(" ...");
    entries.push_back(format.text(tensor[i]));
  }
  size_t per_line = std::max<size_t>(1, (line_width - indent) / (format.width() + 2));
  std::string text = "[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) text += i % per_line == 0 ? ",\n" + std::string(indent + 1, ' ') : ", ";
    text += entries[i];
  }
  return text + "]";
}

// `full_sizes`: the sizes before the middle of the tensor was elided.
std::string layout(const at::Tensor& tensor, at::IntArrayRef full_sizes, size_t indent,
                   const ElementFormat& format) {
  if (tensor.dim() == 0) return format.text(tensor);
  bool cut = full_sizes[0] > tensor.size(0);
  if (tensor.dim() == 1) return row(tensor, cut, indent, format);
  std::string separator(1, ',');
  separator.append(size_t(tensor.dim()) - 1, '\n').append(indent + 1, ' ');
  std::string text = "[";
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    if (i > 0) text += separator;
    if (cut && i == edge_items) text += "..." + separator;
    text += layout(tensor[i], full_sizes.slice(1), indent + 1, format);
  }
  return text + "]";
}

// Formats the elements as nested rows; the first row starts at column `indent`.
std::string elements_text(const at::Tensor& tensor, size_t indent) {
  if (tensor.numel() == 0) return "[]";
  at::Tensor shown = tensor.detach();
  if (shown.is_quantized()) shown = shown.dequantize();
  if (tensor.numel() > threshold) shown = corners(shown);
  shown = shown.cpu().resolve_conj().resolve_neg();
  if (shown.is_floating_point()) shown = shown.to(c10::kDouble);
  if (shown.is_complex()) shown = shown.to(c10::kComplexDouble);
  return layout(shown, tensor.sizes(), indent, ElementFormat(shown));
}

std::string size_text(const at::Tensor& tensor) {
  std::string sizes;
  for (int64_t size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "size=(" + sizes + (tensor.dim() == 1 ? ",)" : ")");
}

std::string dtype_text(const at::Tensor& tensor) {
  return std::string("dtype=torch.") + dtype_name(tensor.scalar_type());
}

// Elements of float32, int64, bool and complex64 show their type, so it is not printed.
bool is_evident(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kLong || dtype == c10::kBool ||
         dtype == c10::kComplexFloat;
}

// Formats a tensor that is part of a sparse one, as `name=tensor(...)`.
std::string part_text(const std::string& name, const at::Tensor& part, size_t indent) {
  std::string text = name + "=tensor(";
  text += elements_text(part, indent + text.size());
  if (part.numel() == 0) text += ", " + size_text(part);
  return text + ")";
}

std::string history_text(const at::Tensor& tensor) {
  if (tensor.grad_fn()) {
    std::string name = tensor.grad_fn()->name();
    size_t colon = name.rfind("::");
    if (colon != std::string::npos) name.erase(0, colon + 2);
    return std::string("grad_fn=<").append(name).append(">");
  }
  return tensor.requires_grad() ? "requires_grad=True" : "";
}

// Appends suffixes to the text; a suffix that would exceed the line width goes on a new line.
std::string with_suffixes(std::string text, const std::vector<std::string>& suffixes, size_t indent,
                          bool new_line) {
  size_t line_end = text.rfind('\n');
  // PyTorch's count, which is one column too many in the first line and two in others.
  size_t column = line_end == std::string::npos ? text.size() + 2 : text.size() - line_end + 1;
  for (const std::string& suffix : suffixes) {
    if (suffix.empty()) continue;
    if (new_line || column + suffix.size() + 2 > line_width) {
      text += ",\n" + std::string(indent, ' ') + suffix;
      column = indent + suffix.size();
      new_line = false;
    } else {
      text += ", " + suffix;
      column += suffix.size() + 2;
    }
  }
  return text + ")";
}

// Formats a tensor that wraps another one: its properties, then the inner tensor.
std::string wrapped_text(const std::string& kind, const std::string& properties,
                         const at::Tensor& value) {
  std::string inner = format_tensor(value);
  for (size_t at = 0; (at = inner.find('\n', at)) != std::string::npos; at += 5)
    inner.insert(at + 1, 4, ' ');
  return kind + "(" + properties + "=\n    " + inner + "\n)";
}

// Shows only the local part, so that printing involves no other process.
std::string sharded_text(const at::Tensor& tensor) {
  std::string properties = size_text(tensor), history = history_text(tensor);
  for_each_shown(placements_of(tensor), [&](const char* name, const Placement& placement) {
    properties.append(", ").append(name).append("=").append(to_string(placement));
  });
  if (!history.empty()) properties += ", " + history;
  return wrapped_text("ShardedTensor", properties + ", part", to_local(tensor.detach()));
}

}  // namespace

std::string format_tensor(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  if (auto* batched = at::functorch::maybeGetBatchedImpl(tensor))
    return wrapped_text("BatchedTensor",
                        "lvl=" + std::to_string(batched->level()) +
                            ", bdim=" + std::to_string(batched->bdim()) + ", value",
                        batched->value());
  if (auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor))
    return wrapped_text("GradTrackingTensor",
                        "lvl=" + std::to_string(wrapper->level().value_or(-1)) + ", value",
                        wrapper->value());
  if (is_sharded(tensor)) return sharded_text(tensor);
  constexpr size_t indent = 7;  // under the bracket after `tensor(`
  c10::ScalarType dtype = tensor.scalar_type();
  std::string text = "tensor(";
  std::vector<std::string> suffixes;
  if (!tensor.device().is_cpu()) suffixes.push_back("device='" + tensor.device().str() + "'");
  bool is_coo = tensor.layout() == c10::kSparse;
  if (tensor.layout() != c10::kStrided || tensor.is_meta()) {
    suffixes.push_back(size_text(tensor));
    if (is_coo) suffixes.push_back("nnz=" + std::to_string(tensor._nnz()));
    if (tensor.is_meta() ? dtype != c10::kFloat : !is_evident(dtype))
      suffixes.push_back(dtype_text(tensor));
    text += is_coo && !tensor.is_meta()
                ? part_text("indices", tensor._indices(), indent) + ",\n" +
                      std::string(indent, ' ') + part_text("values", tensor._values(), indent)
                : "...";
  } else {
    bool is_empty = tensor.numel() == 0;
    if (is_empty && tensor.dim() != 1) suffixes.push_back(size_text(tensor));
    if (is_empty ? dtype != c10::kFloat : !is_evident(dtype))
      suffixes.push_back(dtype_text(tensor));
    text += elements_text(tensor, indent);
  }
  if (tensor.layout() != c10::kStrided) {
    std::ostringstream name;
    name << tensor.layout();
    std::string layout_name = name.str();
    std::transform(layout_name.begin(), layout_name.end(), layout_name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    suffixes.push_back("layout=torch." +
                       (is_coo ? std::string("sparse_coo") : std::move(layout_name)));
  }
  suffixes.push_back(history_text(tensor));
  return with_suffixes(std::move(text), suffixes, indent, is_coo);
}

}  // namespace redco::lua
