--- The image processors of transformers that image_processor.lua knows, with
---   crops: whether they crop
---   scales_shorter_side: whether they scale the shorter side
---   target_size(o, height, width) -> height, width: to which an image is resized, if not to `size`
---   cut: what makes tiles or sizes of an image (image_tiles.lua), in place of a resize and a crop
---   read_size(where, o): reads `size` if it has another meaning
---   layout: "by_image" if an image's tiles have a dimension, "padded" if images differ in size, or
---     function(images, infos, options) -> tensor, or a table of a model's inputs
---   defaults: those that differ, and options of `cut`
---   reads_maps: whether they read maps of labels
---   complete(o): changes the options when they are read
---   has_longest: whether `size` may be {longest_edge}
---   dtype: in which it rescales and normalises, if in another than float32
local fail = require "redco.fail"
local padding = require "redco.data.image_padding"
local patches = require "redco.data.image_patches"
local rows = require "redco.data.image_rows"
local tiles = require "redco.data.image_tiles"

local half = { 0.5, 0.5, 0.5 }
local clip = { image_mean = { 0.48145466, 0.4578275, 0.40821073 },
  image_std = { 0.26862954, 0.26130258, 0.27577711 }, resample = 3 }
local imagenet = { image_mean = { 0.485, 0.456, 0.406 }, image_std = { 0.229, 0.224, 0.225 } }

local function with(defaults, more)
  for key, value in pairs(defaults) do
    if more[key] == nil then more[key] = value end
  end
  return more
end

-- Returns all sizes whose height and width are 1 to n times `side`.
local function squares(side, n)
  local list = {}
  for i = 1, n do
    for j = 1, n do list[#list + 1] = { side * i, side * j } end
  end
  return list
end

-- Its tiles are of crop_size.
local function llava_next(image, o, resize)
  return tiles.with_whole_first(image, o, resize, true, o.crop_size.height)
end

-- If the size is at least 384, images are resized to it; else they are resized and cropped.
local function complete_convnext(o)
  local side = o.size.shortest_edge
  if not side then return end
  if side >= 384 then
    o.size = { height = side, width = side }
  elseif o.do_resize then
    o.size = { shortest_edge = math.floor(side / o.crop_pct) }
    o.do_center_crop, o.crop_size = true, { height = side, width = side }
  end
end

-- The number of tiles is that of a canvas to which images are resized.
local function check_llama4(o)
  if not o.do_resize or o.size.height ~= o.size.width then
    fail "image_processor: a Llama4ImageProcessor needs do_resize = true and a square size"
  end
  if o.max_patches < 1 or o.max_patches % 1 ~= 0 then
    fail("image_processor: max_patches is %s, expected a whole number from 1", o.max_patches)
  end
end

local processors = {
  ViTImageProcessor = {},
  DeiTImageProcessor = { crops = true, defaults = { size = 256, resample = 3,
    do_center_crop = true } },
  CLIPImageProcessor = { crops = true, scales_shorter_side = true,
    defaults = with(clip, { do_center_crop = true }) },
  SiglipImageProcessor = { defaults = { resample = 3 } },
  Gemma3ImageProcessor = {},
  BeitImageProcessor = { crops = true, defaults = { size = 256, resample = 3,
    do_center_crop = true, do_reduce_labels = false } },
  SegformerImageProcessor = { reads_maps = true,
    defaults = with(imagenet, { size = 512, do_reduce_labels = false }) },
  RTDetrImageProcessor = { defaults = with(imagenet, { size = 640, do_normalize = false,
    do_convert_annotations = true, format = "coco_detection" }) },
  Sam2ImageProcessor = { defaults = with(imagenet, { size = 1024,
    mask_size = { height = 256, width = 256 } }) },
  DetrImageProcessor = { target_size = padding.target_size, layout = padding.inputs,
    read_size = padding.read_size,
    defaults = with(imagenet, { size = { shortest_edge = 800, longest_edge = 1333 },
      max_size = 1333, do_convert_annotations = true, format = "coco_detection" }) },
  ConvNextImageProcessor = { scales_shorter_side = true, complete = complete_convnext,
    defaults = { size = 384, crop_pct = 224 / 256 } },
  Siglip2ImageProcessor = { target_size = rows.target_size, layout = rows.inputs,
    defaults = { patch_size = 16, max_num_patches = 256 } },
  Gemma4ImageProcessor = { target_size = rows.size_in_squares, layout = rows.inputs_with_places,
    complete = rows.check_tokens, defaults = { resample = 3, do_normalize = false,
      image_mean = { 0, 0, 0 }, image_std = { 1, 1, 1 }, patch_size = 16, max_soft_tokens = 280,
      pooling_kernel_size = 3 } },
  Idefics3ImageProcessor = { cut = tiles.with_whole_last, has_longest = true,
    defaults = { resample = 1, size = { longest_edge = 1456 },
      max_image_size = { longest_edge = 364 }, do_image_splitting = true } },
  GotOcr2ImageProcessor = { cut = tiles.nearest_shape,
    defaults = with(clip, { size = 384, crop_to_patches = false, min_patches = 1,
      max_patches = 12 }) },
  PixtralImageProcessor = { cut = tiles.whole_patches, layout = "padded", has_longest = true,
    defaults = with(clip, { size = { longest_edge = 1024 },
      patch_size = { height = 16, width = 16 } }) },
  Qwen2VLImageProcessor = { cut = patches.in_squares, layout = patches.stacked,
    read_size = patches.read_size, defaults = with(clip, { min_pixels = 0, max_pixels = 0,
      patch_size = 14, temporal_patch_size = 2, merge_size = 2 }) },
  Llama4ImageProcessor = { cut = tiles.in_canvas, dtype = "bfloat16", complete = check_llama4,
    defaults = { size = 336, max_patches = 16, resize_to_max_canvas = false } },
  LlavaNextImageProcessor = { cut = llava_next, layout = "by_image", crops = true,
    scales_shorter_side = true, defaults = with(clip, { size = { shortest_edge = 224 },
      do_center_crop = true, image_grid_pinpoints = { { 336, 672 }, { 672, 336 }, { 672, 672 },
        { 1008, 336 }, { 336, 1008 } } }) },
  LlavaOnevisionImageProcessor = { cut = tiles.with_whole_first, layout = "by_image",
    defaults = with(clip, { size = 384, image_grid_pinpoints = squares(384, 6) }) },
}
processors.BitImageProcessor = processors.CLIPImageProcessor
processors.SmolVLMImageProcessor = processors.Idefics3ImageProcessor
for _, processor in pairs(processors) do
  processor.defaults = processor.defaults or {}
  if processor.cut or processor.target_size then processor.defaults.do_pad = true end
end

return { list = processors, defaults = {
  do_resize = true, resample = 2, do_center_crop = false, do_rescale = true,
  rescale_factor = 1 / 255, do_normalize = true, image_mean = half, image_std = half,
  size = 224, crop_size = 224, pillow = 13,
} }
