#include "image_formats.h"

#include <redco/error.h>

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

namespace redco::image_formats {

namespace {

// libpng reports errors with longjmp, so objects with destructors are members here.
struct PngReader {
  std::string_view rest;
  std::string error;
  png_structp png = nullptr;
  png_infop info = nullptr;

  PngReader(std::string_view bytes) : rest(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info != nullptr) png_set_read_fn(png, this, read);
  }
  PngReader(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  static void on_error(png_structp png, png_const_charp message) {
    static_cast<PngReader*>(png_get_error_ptr(png))->error = message;
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void read(png_structp png, png_bytep target, size_t size) {
    auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > reader.rest.size()) png_error(png, "the file ends too early");
    std::memcpy(target, reader.rest.data(), size);
    reader.rest.remove_prefix(size);
  }

  // Both return false after an error. They have no local variables with destructors.
  bool read_header() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_info(png, info);
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }
  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, rows);
    png_read_end(png, nullptr);
    return true;
  }
};

}  // namespace

at::Tensor decode_png(const std::string& name, std::string_view bytes) {
  PngReader reader(bytes);
  require(reader.info != nullptr, name, ": libpng is out of memory");
  require(reader.read_header(), name, ": not a valid PNG file: ", reader.error);
  int64_t width = png_get_image_width(reader.png, reader.info);
  int64_t height = png_get_image_height(reader.png, reader.info);
  at::Tensor pixels = new_pixels(name, width, height);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < height; ++y) rows.push_back(pixels.data_ptr<uint8_t>() + y * width * 3);
  require(reader.read_rows(rows.data()), name, ": not a valid PNG file: ", reader.error);
  return pixels;
}

}  // namespace redco::image_formats
