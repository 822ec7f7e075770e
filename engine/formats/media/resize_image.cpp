// Resizes images like Pillow (src/libImaging/Resample.c): rows and columns one after the other,
// with integer weights.

#include <redco/error.h>
#include <redco/image.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace redco {

namespace {

constexpr int precision = 22;  // weights are multiples of 2^-22

struct ResizeFilter {
  double reach;
  double (*weight_at)(double distance);
};

double bilinear(double x) { return std::max(1 - std::abs(x), 0.0); }

double bicubic(double x) {  // with a = -1/2
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

double sinc(double x) {
  return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x);
}

double lanczos(double x) { return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0; }

ResizeFilter filter_of(Resample resample) {
  switch (resample) {
    case Resample::lanczos:
      return {3, lanczos};
    case Resample::bilinear:
      return {1, bilinear};
    case Resample::bicubic:
      return {2, bicubic};
  }
  fail("resize_image: there is no such filter");
}

// The weights that resize a line of pixels: pixel i of the result is a weighted sum of `count`
// pixels from first[i] on.
struct Sums {
  int64_t count = 0;
  std::vector<int64_t> first;
  std::vector<int32_t> weights;  // [places, count]
};

// The weights for resizing a line from `from` to `to` pixels; when shrinking, the filter is widened
// by the ratio.
Sums sums_of(int64_t from, int64_t to, const ResizeFilter& filter) {
  double ratio = double(from) / double(to), stretch = std::max(ratio, 1.0);
  double reach = filter.reach * stretch;
  Sums sums;
  // All sums have the same length, which is faster than separate ones; unused pixels have weight 0.
  sums.count = std::min(from, int64_t(std::ceil(reach)) * 2 + 1);
  sums.weights.resize(size_t(to * sums.count));
  for (int64_t i = 0; i < to; ++i) {
    double centre = (double(i) + 0.5) * ratio;
    int64_t begin = std::max<int64_t>(int64_t(centre - reach + 0.5), 0);
    int64_t end = std::min<int64_t>(int64_t(centre + reach + 0.5), from);
    std::vector<double> weights;
    double total = 0;
    for (int64_t j = begin; j < end; ++j) {
      weights.push_back(filter.weight_at((double(j) - centre + 0.5) * (1 / stretch)));
      total += weights.back();
    }
    sums.first.push_back(std::min(begin, from - sums.count));
    int32_t* out = &sums.weights[size_t(i * sums.count + begin - sums.first.back())];
    for (double weight : weights) {
      double scaled = weight / total * (1 << precision);
      *out++ = int32_t(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
  }
  return sums;
}

constexpr int32_t half = 1 << (precision - 1);

uint8_t pixel_of(int32_t sum) { return uint8_t(std::clamp(sum >> precision, 0, 255)); }

// [n_rows, from] -> [n_rows, to], in groups of four rows if possible, which the processor sums in
// parallel.
template <int n>
void resize_rows(const uint8_t* in, uint8_t* out, int64_t from, const Sums& sums) {
  int64_t to = int64_t(sums.first.size());
  for (int64_t i = 0; i < to; ++i) {
    const uint8_t* pixels = in + sums.first[size_t(i)];
    const int32_t* weights = &sums.weights[size_t(i * sums.count)];
    int32_t row_sums[n];
    std::fill_n(row_sums, n, half);
    for (int64_t j = 0; j < sums.count; ++j)
      for (int row = 0; row < n; ++row) row_sums[row] += weights[j] * pixels[row * from + j];
    for (int row = 0; row < n; ++row) out[row * to + i] = pixel_of(row_sums[row]);
  }
}

void resize_rows(const uint8_t* in, uint8_t* out, int64_t n_rows, int64_t from, const Sums& sums) {
  int64_t to = int64_t(sums.first.size()), row = 0;
  for (; row + 4 <= n_rows; row += 4) resize_rows<4>(in + row * from, out + row * to, from, sums);
  for (; row < n_rows; ++row) resize_rows<1>(in + row * from, out + row * to, from, sums);
}

// [from, width] -> [to, width]
void resize_columns(const uint8_t* in, uint8_t* out, int64_t width, const Sums& sums) {
  std::vector<int32_t> row_sums(size_t(width), 0);
  for (size_t i = 0; i < sums.first.size(); ++i) {
    std::fill(row_sums.begin(), row_sums.end(), half);
    const uint8_t* row = in + sums.first[i] * width;
    const int32_t* weights = &sums.weights[i * size_t(sums.count)];
    for (int64_t j = 0; j < sums.count; ++j, row += width)
      for (int64_t x = 0; x < width; ++x) row_sums[size_t(x)] += weights[j] * row[x];
    for (int32_t sum : row_sums) *out++ = pixel_of(sum);
  }
}

// [channels, height, from] -> [channels, height, width]
at::Tensor with_width(const at::Tensor& image, int64_t width, ResizeFilter filter) {
  const int64_t from = image.size(2);
  at::Tensor result = at::empty({image.size(0), image.size(1), width}, at::kByte);
  resize_rows(image.const_data_ptr<uint8_t>(), result.mutable_data_ptr<uint8_t>(),
              image.size(0) * image.size(1), from, sums_of(from, width, filter));
  return result;
}

// [channels, from, width] -> [channels, height, width]
at::Tensor with_height(const at::Tensor& image, int64_t height, ResizeFilter filter) {
  const int64_t from = image.size(1), width = image.size(2);
  at::Tensor result = at::empty({image.size(0), height, width}, at::kByte);
  const Sums sums = sums_of(from, height, filter);
  for (int64_t c = 0; c < image.size(0); ++c)
    resize_columns(image.const_data_ptr<uint8_t>() + c * from * width,
                   result.mutable_data_ptr<uint8_t>() + c * height * width, width, sums);
  return result;
}

}  // namespace

at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width, Resample resample,
                        int64_t pillow) {
  require(image.dim() == 3 && image.scalar_type() == at::kByte && image.numel() > 0,
          "resize_image: expected uint8 [channels, height, width], got ", image.scalar_type(), " ",
          image.sizes());
  require(height > 0 && width > 0, "resize_image: ", height, " x ", width, " is no size");
  const ResizeFilter filter = filter_of(resample);
  const int64_t from_height = image.size(1), from_width = image.size(2);
  at::Tensor result = image.contiguous();
  // As in Pillow, a dimension that keeps its size is not resampled. Its rule for the order:
  // https://github.com/python-pillow/Pillow/pull/9549
  const bool is_columns_first =
      pillow >= 13 && height < from_height && from_height - height > 2 * (from_width - width);
  if (is_columns_first) result = with_height(result, height, filter);
  if (width != from_width) result = with_width(result, width, filter);
  if (!is_columns_first && height != from_height) result = with_height(result, height, filter);
  return result;
}

}  // namespace redco
