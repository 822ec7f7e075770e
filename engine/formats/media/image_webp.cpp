#include "image_formats.h"

#include <redco/error.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

namespace redco::image_formats {

namespace {

// The first picture of an animation, on its whole canvas.
void decode_first(const std::string& name, const WebPData& data, at::Tensor& pixels) {
  std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(
      WebPAnimDecoderNew(&data, nullptr), WebPAnimDecoderDelete);
  uint8_t* canvas = nullptr;
  int time = 0;
  require(decoder != nullptr && WebPAnimDecoderGetNext(decoder.get(), &canvas, &time), name,
          ": not a valid WebP file: its first picture is damaged");
  auto* to = pixels.data_ptr<uint8_t>();
  for (int64_t i = 0, n = pixels.size(0) * pixels.size(1); i < n; ++i, canvas += 4, to += 3)
    for (int channel = 0; channel < 3; ++channel) to[channel] = canvas[channel];
}

}  // namespace

at::Tensor decode_webp(const std::string& name, std::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  require(WebPGetFeatures(data, bytes.size(), &features) == VP8_STATUS_OK, name,
          ": not a valid WebP file: its header is damaged");
  at::Tensor pixels = new_pixels(name, features.width, features.height);
  if (features.has_animation) {
    decode_first(name, {data, bytes.size()}, pixels);
    return pixels;
  }
  require(WebPDecodeRGBInto(data, bytes.size(), pixels.data_ptr<uint8_t>(), pixels.numel(),
                            3 * features.width) != nullptr,
          name, ": not a valid WebP file");
  return pixels;
}

}  // namespace redco::image_formats
