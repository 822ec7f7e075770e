#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

// The formats of image files; each has a source file. A decoder returns uint8 [height, width, 3],
// the memory order of the libraries. For a damaged file it throws an Error that begins with `name`.
namespace redco::image_formats {

/// Returns pixels without values; throws Error for more pixels than are read.
at::Tensor new_pixels(const std::string& name, int64_t width, int64_t height);

at::Tensor decode_bmp(const std::string& name, std::string_view bytes);
at::Tensor decode_gif(const std::string& name, std::string_view bytes);
at::Tensor decode_jpeg(const std::string& name, std::string_view bytes);
at::Tensor decode_png(const std::string& name, std::string_view bytes);
at::Tensor decode_tiff(const std::string& name, std::string_view bytes);
at::Tensor decode_webp(const std::string& name, std::string_view bytes);

}  // namespace redco::image_formats
