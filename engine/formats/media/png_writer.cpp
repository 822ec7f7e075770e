// Encodes PNG images.

#include <redco/error.h>
#include <redco/image.h>

#include <ATen/ops/round.h>
#include <png.h>

#include <csetjmp>
#include <cstdint>
#include <string>
#include <vector>

namespace redco {

namespace {

// libpng reports errors with longjmp, so objects with destructors are members here.
struct PngWriter {
  std::string bytes;
  std::string error;
  png_structp png = nullptr;
  png_infop info = nullptr;

  PngWriter() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info != nullptr) png_set_write_fn(png, this, write, flush);
  }
  PngWriter(const PngWriter&) = delete;
  ~PngWriter() { png_destroy_write_struct(&png, &info); }

  static void on_error(png_structp png, png_const_charp message) {
    static_cast<PngWriter*>(png_get_error_ptr(png))->error = message;
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void write(png_structp png, png_bytep data, size_t size) {
    static_cast<PngWriter*>(png_get_io_ptr(png))
        ->bytes.append(reinterpret_cast<const char*>(data), size);
  }
  static void flush(png_structp) {}

  // Returns false after an error. It has no local variables with destructors.
  bool write_image(uint32_t width, uint32_t height, int colour_type, png_bytepp rows) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_IHDR(png, info, width, height, 8, colour_type, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    png_write_image(png, rows);
    png_write_end(png, info);
    return true;
  }
};

// Converts to uint8 [height, width, channels], the order in the file.
at::Tensor rows_of_pixels(const std::string& name, const at::Tensor& pixels) {
  at::Tensor image = pixels.detach().cpu();
  if (image.dim() == 2) image = image.unsqueeze(0);
  require(image.dim() == 3 && (image.size(0) == 1 || image.size(0) == 3 || image.size(0) == 4) &&
              image.numel() > 0,
          name, ": an image is [height, width] or [1, 3 or 4 channels, height, width], got ",
          pixels.sizes());
  if (image.is_floating_point()) {
    image = image.to(at::kFloat);
    float least = image.min().item<float>(), most = image.max().item<float>();
    // Also fails for NaN.
    require(least >= 0 && most <= 1, name,
            ": the pixels of an image of floating-point numbers are from 0 to 1, these from ",
            least, " to ", most, ": scale them, or give uint8");
    image = image.mul(255).round().to(at::kByte);
  }
  require(image.scalar_type() == at::kByte, name,
          ": the pixels of an image are uint8, or floating-point numbers from 0 to 1, got ",
          image.scalar_type());
  return image.permute({1, 2, 0}).contiguous();
}

}  // namespace

std::string encode_png(const std::string& name, const at::Tensor& pixels) {
  at::Tensor image = rows_of_pixels(name, pixels);
  int64_t height = image.size(0), width = image.size(1), channels = image.size(2);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < height; ++y)
    rows.push_back(image.data_ptr<uint8_t>() + y * width * channels);
  int colour_type = channels == 1   ? PNG_COLOR_TYPE_GRAY
                    : channels == 3 ? PNG_COLOR_TYPE_RGB
                                    : PNG_COLOR_TYPE_RGB_ALPHA;
  PngWriter writer;
  require(writer.info != nullptr, name, ": libpng is out of memory");
  bool is_written = writer.write_image(uint32_t(width), uint32_t(height), colour_type, rows.data());
  require(is_written, name, ": libpng cannot write the image: ", writer.error);
  return std::move(writer.bytes);
}

}  // namespace redco
