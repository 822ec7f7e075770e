// Argument checks that LibTorch's CPU kernels lack, by operator. tests/bindings/operator_fuzz finds
// such calls. GPU kernels check indices themselves.
#include "operator_checks.h"

#include <redco/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/all.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace redco::lua {

namespace {

// The arguments of a call, by name.
class Call {
 public:
  Call(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments)
      : schema_(schema), arguments_(arguments) {}

  // Returns None if this overload of the operator has no such argument.
  const c10::IValue& at(std::string_view name) const {
    static const c10::IValue none;
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (schema_.arguments()[i].name() == name) return arguments_[i];
    return none;
  }
  // Returns an undefined tensor if the argument is missing or not a tensor.
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue& value = at(name);
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  std::vector<int64_t> integers(std::string_view name) const {
    const c10::IValue& value = at(name);
    return value.isIntList() ? value.toIntVector() : std::vector<int64_t>();
  }
  int64_t integer(std::string_view name, int64_t otherwise) const {
    const c10::IValue& value = at(name);
    return value.isInt() ? value.toInt() : otherwise;
  }

  template <class... Parts>
  void require(bool holds, const Parts&... parts) const {
    if (!holds)
      fail("torch.", schema_.name().substr(std::string_view("aten::").size()), ": ", parts...);
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> arguments_;
};

// Returns the elements if they are in plain CPU memory. Of a vmap batch it returns all elements.
std::optional<at::Tensor> elements(at::Tensor tensor) {
  while (tensor.defined()) {
    if (auto* batched = at::functorch::maybeGetBatchedImpl(tensor))
      tensor = batched->value();
    else if (auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor))
      tensor = wrapper->value();
    else
      break;
  }
  bool plain = tensor.defined() && tensor.device().is_cpu() && tensor.has_storage() &&
               tensor.layout() == at::kStrided && tensor.numel() > 0 &&
               !tensor.key_set().has(c10::DispatchKey::Fake);
  return plain ? std::optional(tensor.detach()) : std::nullopt;
}

// Checks that every element is from `least` to `limit` - 1. The kernel refuses non-integers.
void within(const Call& call, const char* name, int64_t least, int64_t limit) {
  auto tensor = elements(call.tensor(name));
  if (!tensor || !at::isIntegralType(tensor->scalar_type(), false)) return;
  auto [low, high] = at::aminmax(*tensor);
  int64_t smallest = low.item<int64_t>(), largest = high.item<int64_t>();
  call.require(smallest >= least && largest < limit, name, ": expected ", least, " to ", limit - 1,
               ", got ", smallest < least ? smallest : largest);
}

void same_sizes(const Call& call, const char* name, at::IntArrayRef sizes) {
  at::Tensor tensor = call.tensor(name);
  if (tensor.defined())
    call.require(tensor.sizes() == sizes, name, ": expected the sizes ", sizes, ", got ",
                 tensor.sizes());
}

void same_numel(const Call& call, const char* name, int64_t numel) {
  at::Tensor tensor = call.tensor(name);
  if (tensor.defined())
    call.require(tensor.numel() == numel, name, ": expected ", numel, " elements, got ",
                 tensor.sizes());
}

int64_t product(at::IntArrayRef sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

// Checks the gradient of a pooling of the last `dims` dimensions of `self`.
template <int dims>
void pooled(const Call& call) {
  at::Tensor self = call.tensor("self");
  at::Tensor grad = call.tensor("grad_output");
  if (!self.defined() || !grad.defined()) return;
  call.require(self.dim() >= dims + 1, "self: expected ", dims + 1, " dimensions or more, got ",
               self.sizes());
  call.require(grad.dim() == self.dim(), "grad_output: expected ", self.dim(), " dimensions, got ",
               grad.sizes());
  call.require(grad.sizes().slice(0, size_t(self.dim() - dims)) ==
                   self.sizes().slice(0, size_t(self.dim() - dims)),
               "grad_output: expected the batch and channels of self, ", self.sizes(), ", got ",
               grad.sizes());
}

// Checks the indices of a pooling, too, each a position in those dimensions.
template <int dims>
void pooled_indices(const Call& call) {
  pooled<dims>(call);
  at::Tensor self = call.tensor("self");
  at::Tensor grad = call.tensor("grad_output");
  if (!self.defined() || !grad.defined()) return;
  same_sizes(call, "indices", grad.sizes());
  within(call, "indices", 0, product(self.sizes().slice(size_t(self.dim() - dims))));
}

// Checks the class numbers, and the lengths that locate them.
void ctc_loss(const Call& call) {
  at::Tensor log_probs = call.tensor("log_probs"), targets = call.tensor("targets");
  if (!log_probs.defined() || !targets.defined() || log_probs.dim() < 1) return;
  int64_t n_classes = log_probs.size(-1);
  call.require(n_classes > 0, "log_probs: there are no classes, its sizes are ", log_probs.sizes());
  int64_t blank = call.integer("blank", 0);
  call.require(blank >= 0 && blank < n_classes, "blank: expected 0 to ", n_classes - 1, ", got ",
               blank);
  // The elements of a padded target beyond its length are not read.
  auto values = elements(targets);
  if (!values || !at::isIntegralType(values->scalar_type(), false)) return;
  std::vector<int64_t> lengths = call.integers("target_lengths");
  if (auto given = elements(call.tensor("target_lengths")); given) {
    if (!at::isIntegralType(given->scalar_type(), false)) return;
    at::Tensor flat = given->to(at::kLong).reshape(-1).contiguous();
    lengths.assign(flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel());
  }
  int64_t total = 0;
  for (int64_t length : lengths) {
    call.require(length >= 0, "target_lengths: expected 0 or more, got ", length);
    call.require(length <= targets.numel() - total || targets.dim() != 1,
                 "target_lengths: ", lengths, " are more than the ", targets.numel(), " targets");
    total += targets.dim() == 1 ? length : 0;
  }
  // The rows of a vmap batch cannot be distinguished.
  if (targets.dim() != 2 || values->dim() != 2 || targets.size(0) != int64_t(lengths.size())) {
    within(call, "targets", 0, n_classes);
    return;
  }
  for (int64_t i = 0; i < targets.size(0); ++i) {
    int64_t length = lengths[size_t(i)];
    call.require(length <= targets.size(1), "target_lengths: ", length, " is more than the ",
                 targets.size(1), " targets of row ", i);
    if (length == 0) continue;
    auto [low, high] = at::aminmax(values->select(0, i).narrow(0, 0, length));
    int64_t smallest = low.item<int64_t>(), largest = high.item<int64_t>();
    call.require(smallest >= 0 && largest < n_classes, "targets: expected 0 to ", n_classes - 1,
                 ", got ", smallest < 0 ? smallest : largest, " in row ", i);
  }
}

// Checks that statistics and weights have an element for each channel.
void batch_norm(const Call& call) {
  at::Tensor input = call.tensor("input");
  if (!input.defined()) return;
  call.require(input.dim() >= 2, "input: expected 2 dimensions or more, got ", input.sizes());
  for (const char* name :
       {"weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var"})
    if (at::Tensor each = call.tensor(name); each.defined() && each.numel() != 0)
      same_sizes(call, name, {input.size(1)});
  same_sizes(call, "grad_out", input.sizes());
  bool is_training = call.at("train").isBool() ? call.at("train").toBool() : false;
  for (const char* name : {"running_mean", "running_var"})
    if (at::Tensor each = call.tensor(name); each.defined() && !is_training)
      same_numel(call, name, input.size(1));
  for (const char* name : {"save_mean", "save_invstd"})
    if (is_training) same_numel(call, name, input.size(1));
}

void layer_norm_backward(const Call& call) {
  at::Tensor input = call.tensor("input");
  std::vector<int64_t> shape = call.integers("normalized_shape");
  if (!input.defined()) return;
  call.require(
      !shape.empty() && size_t(input.dim()) >= shape.size() &&
          input.sizes().slice(size_t(input.dim()) - shape.size()) == at::IntArrayRef(shape),
      "normalized_shape: expected the last sizes of input, ", input.sizes(), ", got ", shape);
  int64_t rows = product(input.sizes().slice(0, size_t(input.dim()) - shape.size()));
  same_sizes(call, "grad_out", input.sizes());
  same_numel(call, "mean", rows);
  same_numel(call, "rstd", rows);
  same_sizes(call, "weight", shape);
  same_sizes(call, "bias", shape);
}

void group_norm(const Call& call) {
  at::Tensor input = call.tensor("input");
  int64_t n = call.integer("N", 0), channels = call.integer("C", 0),
          places = call.integer("HxW", 0), groups = call.integer("group", 0);
  if (!input.defined()) return;
  call.require(n >= 0 && channels > 0 && places >= 0 && groups > 0 && channels % groups == 0,
               "N, C, HxW, group: expected positive numbers and a C that group divides, got ", n,
               ", ", channels, ", ", places, ", ", groups);
  call.require(double(n) * double(channels) * double(places) == double(input.numel()),
               "input: expected N x C x HxW elements, got ", input.sizes());
  same_numel(call, "grad_out", input.numel());
  for (const char* name : {"mean", "rstd"}) same_numel(call, name, n * groups);
  for (const char* name : {"weight", "bias"}) same_numel(call, name, channels);
}

template <int dims>
void grid_sampler_backward(const Call& call) {
  at::Tensor input = call.tensor("input"), grid = call.tensor("grid");
  if (!input.defined() || !grid.defined()) return;
  call.require(input.dim() == dims + 2 && grid.dim() == dims + 2, "input and grid: expected ",
               dims + 2, " dimensions, got ", input.sizes(), " and ", grid.sizes());
  std::vector<int64_t> sizes{input.size(0), input.size(1)};
  for (int i = 0; i < dims; ++i) sizes.push_back(grid.size(i + 1));
  call.require(grid.size(0) == input.size(0) && grid.size(-1) == dims, "grid: expected ",
               input.size(0), " examples of ", dims, " coordinates, got ", grid.sizes());
  same_sizes(call, "grad_output", sizes);
}

void unfold_backward(const Call& call) {
  at::Tensor grad = call.tensor("grad_in");
  std::vector<int64_t> sizes = call.integers("input_sizes");
  int64_t dim = call.integer("dim", 0), size = call.integer("size", 0),
          step = call.integer("step", 1);
  auto n_dims = int64_t(sizes.size());
  if (!grad.defined()) return;
  if (dim < 0) dim += std::max<int64_t>(n_dims, 1);
  call.require(dim >= 0 && dim < std::max<int64_t>(n_dims, 1), "dim: there is no dimension ", dim,
               " in ", sizes);
  int64_t whole = sizes.empty() ? 1 : sizes[size_t(dim)];
  call.require(size >= 0 && size <= whole && step > 0, "size and step: ", size, " and ", step,
               " do not fit into a dimension of ", whole);
  std::vector<int64_t> expected = sizes;
  if (sizes.empty()) {
    expected = {size};
  } else {
    expected[size_t(dim)] = (whole - size) / step + 1;
    expected.push_back(size);
  }
  same_sizes(call, "grad_in", expected);
}

// LAPACK's pivots: from 1, and negative for 2 x 2 blocks.
void ldl_pivots(const Call& call) {
  at::Tensor matrix = call.tensor("LD");
  auto pivots = elements(call.tensor("pivots"));
  if (!matrix.defined() || matrix.dim() < 2 || !pivots || pivots->dim() == 0) return;
  if (!at::isIntegralType(pivots->scalar_type(), false)) return;
  within(call, "pivots", -matrix.size(-1), matrix.size(-1) + 1);
  // A 2 x 2 block has two negative pivots.
  at::Tensor rows = pivots->to(at::kLong).contiguous();
  int64_t n = rows.size(-1), n_negative = 0;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    int64_t pivot = rows.const_data_ptr<int64_t>()[i];
    n_negative = i % n == 0 ? 0 : n_negative;
    n_negative += pivot < 0;
    bool ends = i % n == n - 1 || rows.const_data_ptr<int64_t>()[i + 1] > 0;
    call.require(pivot != 0 && !(ends && n_negative % 2 != 0),
                 "pivots: expected those of linalg_ldl_factor, got ", pivot, " at ", i % n);
    if (pivot > 0) n_negative = 0;
  }
}

void lu_pivots(const Call& call) {
  at::Tensor matrix = call.tensor("LU_data"), pivots = call.tensor("LU_pivots");
  if (!matrix.defined() || !pivots.defined() || matrix.dim() < 2) return;
  std::vector<int64_t> expected = matrix.sizes().vec();
  expected.pop_back();
  expected.back() = std::min(matrix.size(-1), matrix.size(-2));
  same_sizes(call, "LU_pivots", expected);
}

// LAPACK's eigenvalue iteration may not end on NaN.
void finite(const Call& call) {
  at::Tensor self = call.tensor("self").defined() ? call.tensor("self") : call.tensor("input");
  if (auto values = elements(self))
    call.require(at::isfinite(*values).all().item<bool>(),
                 "the matrix has NaN or infinite elements");
}

void segment_reduce(const Call& call) {
  const c10::IValue& is_unsafe = call.at("unsafe");
  call.require(!is_unsafe.isBool() || !is_unsafe.toBool(),
               "unsafe = true would skip the check of the lengths; omit it");
}

void sparse_coo(const Call& call) {
  at::Tensor indices = call.tensor("indices"), values = call.tensor("values");
  if (!elements(indices) || !values.defined() || call.at("size").isNone()) return;
  call.require(indices.scalar_type() == at::kLong, "indices: expected int64");
  at::_validate_sparse_coo_tensor_args(indices, values, call.integers("size"));
}

struct SparseLayout {
  const char* compressed;
  const char* plain;
  c10::Layout layout;
};

constexpr SparseLayout sparse_layouts[] = {{"crow_indices", "col_indices", at::kSparseCsr},
                                           {"ccol_indices", "row_indices", at::kSparseCsc},
                                           {"compressed_indices", "plain_indices", at::kSparseCsr}};

template <bool is_blocked>
void sparse_compressed(const Call& call) {
  for (const SparseLayout& each : sparse_layouts) {
    at::Tensor compressed = call.tensor(each.compressed), plain = call.tensor(each.plain),
               values = call.tensor("values");
    if (!compressed.defined() || !plain.defined() || !values.defined()) continue;
    c10::Layout layout = each.layout;
    if (is_blocked) layout = layout == at::kSparseCsr ? at::kSparseBsr : at::kSparseBsc;
    if (call.at("layout").isInt()) layout = call.at("layout").toLayout();
    if (call.at("size").isNone()) continue;
    at::_validate_sparse_compressed_tensor_args(compressed, plain, values, call.integers("size"),
                                                layout);
  }
}

void attention(const Call& call) {
  at::Tensor query = call.tensor("query"), key = call.tensor("key"), value = call.tensor("value");
  if (!query.defined() || !key.defined() || !value.defined()) return;
  if (query.dim() < 2 || key.dim() < 2 || value.dim() < 2) return;  // the operator refuses it
  call.require(key.size(-2) == value.size(-2), "key and value: expected the same length, got ",
               key.sizes(), " and ", value.sizes());
  for (const at::Tensor& tensor : {query, key, value})
    call.require(tensor.dim() < 3 || tensor.size(-3) > 0,
                 "query, key and value: expected one head or more, got ", query.sizes(), ", ",
                 key.sizes(), " and ", value.sizes());
}

// Checks the weights of each layer and direction: [gates x hidden, input], [gates x hidden,
// hidden], ...
template <int gates>
void recurrent(const Call& call) {
  at::Tensor input = call.tensor("input");
  if (!input.defined()) input = call.tensor("data");
  const c10::IValue& params = call.at("params");
  at::Tensor hidden = call.tensor("hx");
  if (call.at("hx").isTensorList() && !call.at("hx").toTensorVector().empty())
    hidden = call.at("hx").toTensorVector()[0];
  if (!input.defined() || !params.isTensorList() || !hidden.defined() || input.dim() < 1) return;
  bool has_biases = call.at("has_biases").isBool() && call.at("has_biases").toBool();
  bool both_ways = call.at("bidirectional").isBool() && call.at("bidirectional").toBool();
  int64_t n_layers = call.integer("num_layers", 1), size = hidden.dim() > 0 ? hidden.size(-1) : 0;
  std::vector<at::Tensor> weights = params.toTensorVector();
  size_t n_each = has_biases ? 4 : 2;
  bool projected = weights.size() > 0 && n_each > 0 && weights.size() % (n_each + 1) == 0 &&
                   weights.size() % n_each != 0;
  if (projected) return;  // the general path checks every product
  call.require(n_layers > 0 && n_layers < (int64_t{1} << 20) &&
                   weights.size() == n_each * size_t(n_layers * (both_ways ? 2 : 1)),
               "params: expected ", n_each, " for each layer and direction, got ", weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    auto layer = int64_t(i / n_each) / (both_ways ? 2 : 1);
    int64_t inner = layer == 0 ? input.size(-1) : size * (both_ways ? 2 : 1);
    std::vector<int64_t> expected{gates * size};
    if (i % n_each < 2) expected.push_back(i % n_each == 0 ? inner : size);
    call.require(weights[i].sizes() == at::IntArrayRef(expected), "params[", i + 1,
                 "]: expected the sizes ", expected, ", got ", weights[i].sizes());
  }
}

void matrix_power(const Call& call) {
  call.require(call.integer("n", 0) != std::numeric_limits<int64_t>::min(), "n: out of range");
}

// The operator creates a tensor for each of the `r` positions.
void combinations(const Call& call) {
  call.require(call.integer("r", 2) <= 64, "r: expected at most 64, got ", call.integer("r", 2));
}

struct Entry {
  const char* names;
  void (*check)(const Call&);
};

constexpr Entry table[] = {
    {"ctc_loss _ctc_loss _ctc_loss_backward", ctc_loss},
    {"max_pool2d_with_indices_backward adaptive_max_pool2d_backward fractional_max_pool2d_backward",
     pooled_indices<2>},
    {"max_pool3d_with_indices_backward adaptive_max_pool3d_backward fractional_max_pool3d_backward",
     pooled_indices<3>},
    {"avg_pool2d_backward", pooled<2>},
    {"avg_pool3d_backward", pooled<3>},
    {"native_batch_norm native_batch_norm_backward batch_norm_backward", batch_norm},
    {"native_layer_norm_backward", layer_norm_backward},
    {"native_group_norm native_group_norm_backward", group_norm},
    {"grid_sampler_2d_backward", grid_sampler_backward<2>},
    {"grid_sampler_3d_backward", grid_sampler_backward<3>},
    {"unfold_backward", unfold_backward},
    {"linalg_ldl_solve", ldl_pivots},
    {"lu_unpack", lu_pivots},
    {"linalg_eig linalg_eigvals _linalg_eigvals", finite},
    {"segment_reduce", segment_reduce},
    {"sparse_coo_tensor", sparse_coo},
    {"sparse_csr_tensor sparse_csc_tensor sparse_compressed_tensor", sparse_compressed<false>},
    {"sparse_bsr_tensor sparse_bsc_tensor", sparse_compressed<true>},
    {"scaled_dot_product_attention", attention},
    {"lstm", recurrent<4>},
    {"gru", recurrent<3>},
    {"rnn_tanh rnn_relu", recurrent<1>},
    {"matrix_power linalg_matrix_power", matrix_power},
    {"combinations", combinations},
};

// Operators that change the storage of a tensor; operators on weights packed by functions that are
// not in Lua; inner kernels whose arguments their outer operators check; dimensions by name.
constexpr const char* withheld =
    "set_ set_data quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell "
    "quantized_rnn_tanh_cell fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation "
    "fbgemm_linear_quantize_weight fbgemm_pack_quantized_matrix fbgemm_pack_gemm_matrix_fp16 "
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation mkldnn_rnn_layer "
    "mkldnn_rnn_layer_backward slow_conv3d slow_conv3d_forward align_tensors align_as";

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

template <size_t i>
void run_check(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  table[i].check(Call(schema, arguments));
}

template <size_t... i>
Check check_at(size_t index, std::index_sequence<i...>) {
  constexpr Check all[] = {run_check<i>...};
  return all[index];
}

}  // namespace

Check find_check(const std::string& name) {
  constexpr size_t n = std::size(table);
  std::string_view bare = std::string_view(name).substr(std::string_view("aten::").size());
  for (size_t i = 0; i < n; ++i)
    if (has_word(table[i].names, bare)) return check_at(i, std::make_index_sequence<n>());
  return nullptr;
}

bool is_withheld(const std::string& name) { return has_word(withheld, name); }

}  // namespace redco::lua
