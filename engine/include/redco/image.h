#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace redco {

/// Decodes a PNG, JPEG, WebP, GIF, BMP or TIFF file into RGB pixels, uint8 [3, height, width], as
/// Pillow's convert("RGB") does: grey values are repeated, CMYK becomes RGB, transparency is
/// dropped, of several pictures the first is read, and 16-bit values keep their upper 8 bits
/// (Pillow clips 16-bit grey values instead). An orientation in the metadata is applied to TIFF
/// files only. Throws Error, beginning with `name`, for any other or damaged file, and for more
/// than 178,956,970 pixels (Pillow's limit), before it decodes any.
REDCO_API at::Tensor decode_image(const std::string& name, std::string_view bytes);

/// Encodes pixels as a PNG file: [height, width] grey or [channels, height, width] with 1 channel,
/// 3 (RGB) or 4 (RGBA), as uint8 or floating-point numbers from 0 to 1. Throws Error, beginning
/// with `name`, for anything else.
REDCO_API std::string encode_png(const std::string& name, const at::Tensor& pixels);

/// Encodes pixels, uint8 [3, height, width], as a JPEG file of a quality from 1 to 100. Throws
/// Error, beginning with `name`, for anything else.
REDCO_API std::string encode_jpeg(const std::string& name, const at::Tensor& pixels, int quality);

/// Filters, with Pillow's numbers.
enum class Resample { lanczos = 1, bilinear = 2, bicubic = 3 };

/// The version of Pillow whose colours are the default.
inline constexpr int64_t newest_pillow = 13;

/// Resizes an image, uint8 [channels, height, width] on the CPU. The result is bit-identical to
/// that of `resize` of this version of Pillow: since 13 columns come before rows where that is less
/// work, and the values between the two are rounded.
REDCO_API at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width,
                                  Resample resample, int64_t pillow = newest_pillow);

}  // namespace redco
