#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace redco {

/// The pixels of a PNG or JPEG file, uint8 [3, height, width] in RGB, as Pillow's convert("RGB")
/// has them: grey values thrice, transparency dropped, of 16 bits the upper 8 (where they are grey,
/// Pillow cuts instead); an orientation in the metadata is not applied. Throws Error, beginning
/// with `name`, for any other or broken file, and for more than 178,956,970 pixels (Pillow's
/// limit), before any is decoded.
REDCO_API at::Tensor decode_image(const std::string& name, std::string_view bytes);

/// A PNG file of pixels: [height, width] of grey ones or [channels, height, width], with 1 channel,
/// 3 (RGB) or 4 (and opacity), as uint8 or as floating-point numbers from 0 to 1. Throws Error,
/// beginning with `name`, for anything else.
REDCO_API std::string encode_png(const std::string& name, const at::Tensor& pixels);

/// Filters by Pillow's numbers for them.
enum class Resample { lanczos = 1, bilinear = 2, bicubic = 3 };

/// An image, uint8 [channels, height, width] on the CPU, in another size: what Pillow's `resize`
/// gives, to the last bit.
REDCO_API at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width,
                                  Resample resample);

}  // namespace redco
