// Least squares with three numbers that may not be negative.

#include "link_fit.h"

#include <redco/error.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace redco::plan {

namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

// Solves for the numbers in `chosen` by Gaussian elimination; the others are 0. Returns none if the
// equations do not determine the numbers.
std::optional<Vector> solve(Matrix a, Vector b, unsigned chosen) {
  std::array<size_t, 3> index{};
  size_t n = 0;
  for (size_t i = 0; i < 3; ++i)
    if ((chosen >> i & 1) != 0) index[n++] = i;
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t row = i; row < n; ++row)
      if (std::abs(a[index[row]][index[i]]) > std::abs(a[index[pivot]][index[i]])) pivot = row;
    std::swap(a[index[i]], a[index[pivot]]);
    std::swap(b[index[i]], b[index[pivot]]);
    double divisor = a[index[i]][index[i]];
    if (std::abs(divisor) < 1e-12) return std::nullopt;
    for (size_t row = 0; row < n; ++row) {
      if (row == i) continue;
      double factor = a[index[row]][index[i]] / divisor;
      for (size_t column = i; column < n; ++column)
        a[index[row]][index[column]] -= factor * a[index[i]][index[column]];
      b[index[row]] -= factor * b[index[i]];
    }
  }
  Vector x{};
  for (size_t i = 0; i < n; ++i) x[index[i]] = b[index[i]] / a[index[i]][index[i]];
  return x;
}

}  // namespace

Measurements::Link fit_link(const std::vector<CollectiveSample>& samples, double bandwidth) {
  constexpr double microsecond = 1e-6;
  // Scales the columns to about 1, so that the equations can be solved. The units are microseconds,
  // and the longest time at `bandwidth`.
  std::vector<Vector> rows;
  double longest = 0;
  bool has_sizes = false;
  for (const CollectiveSample& each : samples) {
    require(each.seconds > 0 && each.n_ranks > 1, "a collective of ", each.n_ranks,
            " ranks that took ", each.seconds, " s gives no time of a link");
    longest = std::max(longest, double(each.bytes_sent) / bandwidth);
    has_sizes = has_sizes || each.bytes_sent != samples.front().bytes_sent;
  }
  require(has_sizes, "the times of a link need collectives of several sizes");
  Matrix squares{};
  Vector products{};
  for (const CollectiveSample& each : samples) {
    auto steps =
        double(each.kind == Group::all_reduce_kind ? 2 * (each.n_ranks - 1) : each.n_ranks - 1);
    // Divides each row by the time, because the fit minimizes relative errors.
    Vector row{microsecond / each.seconds, steps * microsecond / each.seconds,
               double(each.bytes_sent) / bandwidth / longest / each.seconds};
    rows.push_back(row);
    for (size_t i = 0; i < 3; ++i) {
      products[i] += row[i];
      for (size_t j = 0; j < 3; ++j) squares[i][j] += row[i] * row[j];
    }
  }
  // Solves once for each set of numbers that may differ from 0. The best solution without a
  // negative number solves the problem with bounds.
  double least = std::numeric_limits<double>::max();
  Vector best{};
  for (unsigned chosen = 1; chosen < 8; ++chosen) {
    auto x = solve(squares, products, chosen);
    if (!x || (*x)[0] < 0 || (*x)[1] < 0 || (*x)[2] < 0) continue;
    double loss = 0;
    for (const Vector& row : rows)
      loss += std::pow(row[0] * (*x)[0] + row[1] * (*x)[1] + row[2] * (*x)[2] - 1, 2);
    if (loss < least) std::tie(least, best) = std::pair(loss, *x);
  }
  // A link without a term for the bytes is faster than can be measured: it gets the largest share.
  constexpr double most_share = 10;
  double share = best[2] > 0 ? longest / best[2] : most_share;
  return {best[0], best[1], std::min(share, most_share)};
}

}  // namespace redco::plan
