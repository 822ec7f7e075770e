#pragma once

#include <cstdint>

namespace redco::kernels {

/// The number of rows to compute for `rows`: there are kernels for groups of 1, 4 and 8.
int64_t few_rows_padded(int64_t rows);

/// Computes outputs [begin, end) of y = x W^T: y [rows, n_out], x [rows, n_in] contiguous, `rows`
/// padded. W is contiguous as [n_out, n_in] (`by_outputs`) or as [n_in, n_out], of float or
/// c10::BFloat16.
template <class T>
void few_rows_linear(const float* x, const T* w, float* y, int64_t rows, int64_t n_in,
                     int64_t n_out, bool by_outputs, int64_t begin, int64_t end);

}  // namespace redco::kernels
