#include "image_formats.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace redco::image_formats {

namespace {

int read_gif(GifFileType* gif, GifByteType* to, int size) {
  auto& rest = *static_cast<std::string_view*>(gif->UserData);
  size_t n = std::min(size_t(size), rest.size());
  std::memcpy(to, rest.data(), n);
  rest.remove_prefix(n);
  return int(n);
}

struct Close {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

using Gif = std::unique_ptr<GifFileType, Close>;

void check(const std::string& name, bool is_good, int error) {
  const char* message = is_good ? nullptr : GifErrorString(error);
  require(is_good, name,
          ": not a valid GIF file: ", message != nullptr ? message : "the file ends too early");
}

// Reads up to the first picture; returns its transparent colour, or 0.
int read_to_picture(const std::string& name, GifFileType* gif) {
  int transparent = 0;
  for (;;) {
    GifRecordType kind = UNDEFINED_RECORD_TYPE;
    check(name, DGifGetRecordType(gif, &kind) == GIF_OK, gif->Error);
    require(kind != TERMINATE_RECORD_TYPE, name, ": a GIF file without a picture");
    if (kind == IMAGE_DESC_RECORD_TYPE) return transparent;
    if (kind != EXTENSION_RECORD_TYPE) continue;
    int code = 0;
    GifByteType* block = nullptr;
    check(name, DGifGetExtension(gif, &code, &block) == GIF_OK, gif->Error);
    GraphicsControlBlock control;
    if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
        control.TransparentColor != NO_TRANSPARENT_COLOR)
      transparent = control.TransparentColor;
    while (block != nullptr) check(name, DGifGetExtensionNext(gif, &block) == GIF_OK, gif->Error);
  }
}

// Reads the colour numbers of the picture into their place on the canvas.
void read_numbers(const std::string& name, GifFileType* gif, uint8_t* canvas) {
  const GifImageDesc& place = gif->Image;
  require(place.Left >= 0 && place.Top >= 0 && place.Width > 0 && place.Height > 0 &&
              place.Left + place.Width <= gif->SWidth && place.Top + place.Height <= gif->SHeight,
          name, ": not a valid GIF file: its picture of ", place.Width, " x ", place.Height,
          " pixels is not within ", gif->SWidth, " x ", gif->SHeight);
  auto read_row = [&](int y) {
    uint8_t* row = canvas + int64_t(place.Top + y) * gif->SWidth + place.Left;
    check(name, DGifGetLine(gif, row, place.Width) == GIF_OK, gif->Error);
  };
  // The passes of an interlaced file: the first row, and the distance to the next.
  constexpr int passes[][2] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, whole[][2] = {{0, 1}};
  if (place.Interlace) {
    for (auto [first, distance] : passes)
      for (int y = first; y < place.Height; y += distance) read_row(y);
  } else {
    for (auto [first, distance] : whole)
      for (int y = first; y < place.Height; y += distance) read_row(y);
  }
}

}  // namespace

at::Tensor decode_gif(const std::string& name, std::string_view bytes) {
  int error = 0;
  Gif gif(DGifOpen(&bytes, read_gif, &error));
  check(name, gif != nullptr, error);
  at::Tensor pixels = new_pixels(name, gif->SWidth, gif->SHeight);
  int transparent = read_to_picture(name, gif.get());
  check(name, DGifGetImageDesc(gif.get()) == GIF_OK, gif->Error);
  // Filled only around the picture, so that a file without its data takes little memory.
  at::Tensor numbers = at::empty({gif->SHeight, gif->SWidth}, at::kByte);
  if (gif->Image.Width < gif->SWidth || gif->Image.Height < gif->SHeight)
    numbers.fill_(transparent);
  auto* from = numbers.data_ptr<uint8_t>();
  read_numbers(name, gif.get(), from);
  const ColorMapObject* own = gif->Image.ColorMap;
  const ColorMapObject* colours = own != nullptr ? own : gif->SColorMap;
  auto* to = pixels.data_ptr<uint8_t>();
  for (int64_t i = 0, n = numbers.numel(); i < n; ++i) {
    uint8_t number = from[i];
    GifColorType colour = {number, number, number};  // a file without colours is grey
    if (colours != nullptr)
      colour = number < colours->ColorCount ? colours->Colors[number] : GifColorType{0, 0, 0};
    *to++ = colour.Red;
    *to++ = colour.Green;
    *to++ = colour.Blue;
  }
  return pixels;
}

}  // namespace redco::image_formats
