// Decodes images of all formats.
#include "image_formats.h"

#include <redco/error.h>
#include <redco/image.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace redco {

namespace {

using namespace image_formats;

constexpr int64_t max_pixels = 178956970;

// A file has a format if it begins with `signature` and has `later` from byte 8 on.
struct ImageFormat {
  std::string_view signature, later;
  at::Tensor (*decode)(const std::string& name, std::string_view bytes);
};

constexpr ImageFormat image_formats_by_signature[] = {
    {"\x89PNG\r\n\x1a\n", "", decode_png},
    {"\xFF\xD8\xFF", "", decode_jpeg},
    {"RIFF", "WEBP", decode_webp},
    {"GIF8", "", decode_gif},
    {"BM", "", decode_bmp},
    {std::string_view("II*\0", 4), "", decode_tiff},
    {std::string_view("MM\0*", 4), "", decode_tiff},
};

}  // namespace

at::Tensor image_formats::new_pixels(const std::string& name, int64_t width, int64_t height) {
  require(width > 0 && height > 0 && width <= max_pixels / height, name, ": an image of ", width,
          " x ", height, " pixels; at most ", max_pixels, " pixels are read");
  return at::empty({height, width, 3}, at::kByte);
}

at::Tensor decode_image(const std::string& name, std::string_view bytes) {
  for (const ImageFormat& format : image_formats_by_signature)
    if (bytes.substr(0, format.signature.size()) == format.signature &&
        bytes.substr(std::min<size_t>(8, bytes.size()), format.later.size()) == format.later)
      return format.decode(name, bytes).permute({2, 0, 1}).contiguous();
  fail(name, ": not a PNG, JPEG, WebP, GIF, BMP or TIFF file, by its first bytes");
}

}  // namespace redco
