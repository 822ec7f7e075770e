// Estimates the steps that an operator takes in a restricted engine.

#include "operator_work.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>

namespace redco::lua {

namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

constexpr double steps_of_call = 20;
constexpr double elements_per_step = 16;
// A multiplication in a product takes a sixteenth of the time of an element in other operators.
constexpr double multiplications_per_element = 16;

// The formulas run before the operator checks its arguments, so these may have any type and size.

double numel(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? double(tensor.numel()) : 0;
  }
  double sum = 0;
  if (value.isTensorList() || value.isList())
    for (const c10::IValue& each : value.toListRef())
      if (each.isTensor()) sum += numel(each);
  return sum;
}

double all_elements(Arguments arguments) {
  double sum = 0;
  for (const c10::IValue& argument : arguments) sum += numel(argument);
  return sum;
}

// Returns the size of dimension `dim` of argument `i`, or 1 if there is none. A negative `dim`
// counts from the last.
double size(Arguments arguments, size_t i, int64_t dim) {
  if (i >= arguments.size() || !arguments[i].isTensor()) return 1;
  const at::Tensor& tensor = arguments[i].toTensor();
  if (!tensor.defined()) return 1;
  if (dim < 0) dim += tensor.dim();
  return dim < 0 || dim >= tensor.dim() ? 1 : double(tensor.size(dim));
}

bool is_vector(Arguments arguments, size_t i) {
  return i < arguments.size() && arguments[i].isTensor() && arguments[i].toTensor().defined() &&
         arguments[i].toTensor().dim() < 2;
}

// Returns the product of a list of integers, each at least `least`.
double product(Arguments arguments, size_t i, int64_t least = 1) {
  if (i >= arguments.size() || !arguments[i].isIntList()) return 1;
  double result = 1;
  for (int64_t each : arguments[i].toIntVector()) result *= double(std::max(each, least));
  return result;
}

// [..., m, k] x [..., k, n]: the arguments `first` and `first` + 1.
template <size_t first>
double matrix_product(Arguments arguments) {
  double columns = is_vector(arguments, first + 1) ? 1 : size(arguments, first + 1, -1);
  return all_elements(arguments) + numel(arguments[first]) * columns / multiplications_per_element;
}

// (input, weight, ...): each element of the weight is multiplied at most once for each position of
// the input, or of the output if padding makes that larger.
template <size_t input, size_t padding>
double convolution(Arguments arguments) {
  double channels = std::max(1.0, size(arguments, input, 1));
  double places = numel(arguments[input]) / channels, padded = size(arguments, input, 0);
  if (padding < arguments.size() && arguments[padding].isIntList()) {
    int64_t dim = 2;
    for (int64_t each : arguments[padding].toIntVector())
      padded *= size(arguments, input, dim++) + 2 * std::max(0.0, double(each));
    places = std::max(places, padded);
  }
  return all_elements(arguments) +
         places * numel(arguments[input + 1]) * 2 / multiplications_per_element;
}

// Query, key and value: the arguments from `first` on.
template <size_t first>
double attention(Arguments arguments) {
  return all_elements(arguments) +
         numel(arguments[first]) * size(arguments, first + 1, -2) * 4 / multiplications_per_element;
}

// Matrix decompositions: each element is combined with a row several times.
double decomposition(Arguments arguments) {
  double sum = 0;
  for (size_t i = 0; i < arguments.size(); ++i)
    sum += numel(arguments[i]) * (16 + 2 * size(arguments, i, -1) + 2 * size(arguments, i, -2));
  return sum;
}

// Each output reads a window; argument 1 has the window's sizes, argument 2 the stride.
double pooling(Arguments arguments) {
  double window = product(arguments, 1);
  return numel(arguments[0]) * window / std::min(window, product(arguments, 2)) +
         all_elements(arguments);
}

// All pairs of rows of the first two arguments.
double pairs(Arguments arguments) {
  return all_elements(arguments) *
         (1 + size(arguments, arguments.size() > 1 && arguments[1].isTensor() ? 1 : 0, -2));
}

double recurrent(Arguments arguments) {
  return all_elements(arguments) + numel(arguments[0]) / std::max(1.0, size(arguments, 0, -1)) *
                                       all_elements(arguments.slice(1)) /
                                       multiplications_per_element;
}

template <int times>
double each_takes(Arguments arguments) {
  return times * all_elements(arguments);
}

// Only some elements of the first argument are read.
double by_index(Arguments arguments) { return all_elements(arguments.slice(1)); }

double isin(Arguments arguments) {
  return arguments.size() < 2 ? 0
                              : 32 * all_elements(arguments) +
                                    std::min(numel(arguments[0]), 16.0) * numel(arguments[1]);
}

double integer(Arguments arguments, size_t i, double otherwise) {
  return i < arguments.size() && arguments[i].isInt() ? double(arguments[i].toInt()) : otherwise;
}

// Each piece takes the steps of a call. Pieces may be empty, so there can be more than elements.
double pieces(double n) { return std::max(0.0, n) * steps_of_call * elements_per_step; }

// (self, dim)
double unbind(Arguments arguments) {
  return pieces(size(arguments, 0, int64_t(integer(arguments, 1, 0))));
}

// (self, split_size, dim)
double split(Arguments arguments) {
  return pieces(size(arguments, 0, int64_t(integer(arguments, 2, 0))) /
                std::max(1.0, integer(arguments, 1, 1)));
}

// (self, chunks, dim)
double chunks(Arguments arguments) {
  double all = size(arguments, 0, int64_t(integer(arguments, 2, 0)));
  double n = integer(arguments, 1, 0);
  return pieces(all > 0 ? std::min(n, all) : n);
}

// (self, sections)
double sections(Arguments arguments) { return pieces(integer(arguments, 1, 0)); }

using Formula = double (*)(Arguments);

struct Group {
  Formula formula;
  const char* names;
};

constexpr Group groups[] = {
    {matrix_product<0>, "mm bmm mv dot vdot _int_mm"},
    {matrix_product<1>,
     "addmm addmm_ addmv addmv_ addbmm addbmm_ baddbmm baddbmm_ addr addr_ "
     "_addmm_activation"},
    {convolution<0, 4>, "convolution _convolution convolution_overrideable"},
    {convolution<1, 5>, "convolution_backward"},
    {attention<0>, "_scaled_dot_product_flash_attention_for_cpu"},
    {attention<1>, "_scaled_dot_product_flash_attention_for_cpu_backward"},
    {recurrent, "mkldnn_rnn_layer mkldnn_rnn_layer_backward"},
    {decomposition,
     "_linalg_det _linalg_slogdet _linalg_solve_ex _linalg_svd _linalg_eigh _linalg_eigvals "
     "linalg_eig linalg_eigvals linalg_cholesky_ex linalg_inv_ex linalg_lu linalg_lu_factor_ex "
     "linalg_lu_solve linalg_ldl_factor_ex linalg_qr linalg_lstsq linalg_matrix_exp "
     "linalg_solve_triangular linalg_householder_product triangular_solve cholesky "
     "cholesky_inverse "
     "_cholesky_solve_helper cholesky_solve geqrf ormqr linalg_pinv lu_unpack"},
    {pooling,
     "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d"},
    {pairs, "_cdist_forward _euclidean_dist _pdist_forward cdist pdist"},
    {each_takes<32>,
     "sort topk kthvalue median nanmedian mode unique_dim _unique _unique2 unique_consecutive "
     "unique_dim_consecutive msort argsort searchsorted bucketize multinomial"},
    {isin, "isin"},
    {each_takes<256>,
     "igamma igamma_ igammac igammac_ special_zeta polygamma digamma digamma_ lgamma lgamma_ "
     "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
     "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
     "special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
     "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_ndtri special_erfcx "
     "special_log_ndtr erfinv erfinv_ i0 i0_ special_i0e special_i1 special_i1e binomial poisson "
     "_standard_gamma"},
    {each_takes<8>,
     "pow pow_ _fft_c2c _fft_c2r _fft_r2c logsumexp logcumsumexp _logcumsumexp "
     "upsample_bicubic2d normal_ randperm"},
    {by_index,
     "index_select gather take embedding index select_copy slice_copy narrow_copy index_put_ "
     "_index_put_impl_ index_add_ index_copy_ index_fill_ scatter_ scatter_add_ scatter_reduce_ "
     "put_"},
    {unbind, "unbind"},
    {split, "split"},
    {chunks, "chunk"},
    {sections, "tensor_split hsplit vsplit dsplit"},
};

enum class Kind : uint8_t { composite, view, kernel };

struct Known {
  Kind kind;
  Formula formula;
};

Known look_at(const c10::OperatorHandle& op) {
  static const auto formulas = [] {
    std::unordered_map<std::string, Formula> made;
    for (const Group& group : groups) {
      std::string_view rest = group.names;
      while (!rest.empty()) {
        size_t end = std::min(rest.find(' '), rest.size());
        made.emplace("aten::" + std::string(rest.substr(0, end)), group.formula);
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
    return made;
  }();
  auto found = formulas.find(op.schema().name());
  if (found != formulas.end()) return {Kind::kernel, found->second};
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return {Kind::composite, nullptr};
  for (const c10::Argument& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return {Kind::view, nullptr};
  return {Kind::kernel, all_elements};
}

const Known& known(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, Known> all;
  auto found = all.find(op.operator_name());
  if (found == all.end()) found = all.emplace(op.operator_name(), look_at(op)).first;
  return found->second;
}

int64_t steps(double elements) {
  double all = elements / elements_per_step;
  return all < 1e18 ? int64_t(all) : std::numeric_limits<int64_t>::max() / 4;
}

}  // namespace

int64_t steps_before(const c10::OperatorHandle& op, Arguments arguments) {
  const Known& about = known(op);
  auto call = int64_t(steps_of_call);
  return about.kind == Kind::kernel && !arguments.empty() ? call + steps(about.formula(arguments))
                                                          : call;
}

int64_t steps_after(const c10::OperatorHandle& op, Arguments results) {
  if (known(op).kind != Kind::kernel) return 0;
  double elements = 0;
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < results.size() && i < returns.size(); ++i)
    if (returns[i].alias_info() == nullptr) elements += numel(results[i]);
  return steps(elements);
}

}  // namespace redco::lua
