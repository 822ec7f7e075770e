-- redco.data.image and image_processor against Pillow and Hugging Face's image processors.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local function expect_same(actual, expected)
  testing.expect_close(actual, expected, 0, 0)
  expect_equal(actual.dtype, expected.dtype)
end

local function check_folder(folder)
  folder = folder .. "/vit_gpt2"
  local arrays, expected = torch.load(folder .. "/expected.safetensors"),
    data.json(folder .. "/expected.json").image_proc
  local image = arrays["image_proc.input_u8"]:permute { 2, 0, 1 }
  local vit = data.image_processor(folder)
  expect_same(vit { image }[0], arrays["image_proc.vit_bilinear"])
  local clip = data.image_processor {
    size = { shortest_edge = 32 }, crop_size = { height = 32, width = 32 }, do_center_crop = true,
    image_mean = expected.clip.image_mean, image_std = expected.clip.image_std,
    resample = expected.clip.resample,
  }
  expect_same(clip(image)[0], arrays["image_proc.clip_bicubic_crop"])
  local batch = arrays["batch0.images_u8"]:permute { 0, 3, 1, 2 }
  expect_same(vit(batch), arrays["batch0.pixel_values"])
end

test("the reference cases", function() check_folder "../cases" end)

local folder = (os.getenv "REDCO_CASES" or ""):match "[^:]+"
if folder then
  test("the cases in REDCO_CASES", function() check_folder(folder) end)
else
  print "REDCO_CASES names no folder: only the cases of the repository are tested"
end

-- Made by tests/tools/make_image_cases.py.
local expected = torch.load "image_cases/expected.safetensors"

test("files of all kinds have Pillow's pixels", function()
  local n = 0
  for name, pixels in pairs(expected) do
    expect_same(data.image("image_cases/" .. name), pixels)
    n = n + 1
  end
  expect_equal(n, 30)
end)

local path = testing.folder() .. "/image"
local function write(bytes)
  os.remove(path)  -- replacing a file's bytes in place makes some file systems wait for the disk
  return testing.write(path, bytes)
end

local function expect_refused(bytes, ...)
  write(bytes)
  return expect_error(function() data.image(path) end, "image_spec.lua:", path, ...)
end

test("a file cut short anywhere is an error that names it", function()
  for _, name in ipairs { "rgb.png", "palette_transparent.png", "colour.jpg", "progressive.jpg",
    "cmyk.jpg" } do
    local bytes = data.read("image_cases/" .. name)
    for size = 0, #bytes - 1 do
      expect_refused(bytes:sub(1, size))
    end
  end
  -- Bytes behind the pixels of other formats are not needed.
  for _, name in ipairs { "palette.bmp", "palette.gif", "lossy.webp", "several.webp",
    "rgb.tiff" } do
    local bytes = data.read("image_cases/" .. name)
    for size = 0, #bytes * 0.6, 3 do
      expect_refused(bytes:sub(1, size))
    end
  end
end)

local function little_endian(n, size)
  local bytes = {}
  for i = 1, size do bytes[i], n = string.char(n % 256), math.floor(n / 256) end
  return table.concat(bytes)
end

-- Returns a TIFF file of one image whose strips or tiles have these texts. `fields` are more tags.
local function tiff(width, height, texts, fields)
  local offsets, sizes, bytes = {}, {}, "II*\0" .. little_endian(8, 4)
  local all = { [256] = width, [257] = height, [258] = 8, [259] = 1, [262] = 1, [277] = 1,
    [278] = height }
  for tag, value in pairs(fields or {}) do all[tag] = value end
  local is_tiled = all[322] ~= nil
  if is_tiled then all[278] = nil end
  local tags = { is_tiled and 324 or 273, is_tiled and 325 or 279 }
  for tag in pairs(all) do tags[#tags + 1] = tag end
  table.sort(tags)
  local place = 8 + 2 + 12 * #tags + 4
  local first, lists = place + 8 * #texts, place
  for i, text in ipairs(texts) do
    offsets[i], sizes[i] = little_endian(first, 4), little_endian(#text, 4)
    first = first + #text
  end
  bytes = bytes .. little_endian(#tags, 2)
  local function list(tag, of, at)
    return little_endian(tag, 2) .. little_endian(4, 2) .. little_endian(#of, 4)
      .. (#of == 1 and of[1] or little_endian(at, 4))
  end
  for _, tag in ipairs(tags) do
    if tag == 273 or tag == 324 then
      bytes = bytes .. list(tag, offsets, lists)
    elseif tag == 279 or tag == 325 then
      bytes = bytes .. list(tag, sizes, lists + 4 * #texts)
    else
      bytes = bytes .. list(tag, { little_endian(all[tag], 4) })
    end
  end
  return bytes .. little_endian(0, 4) .. table.concat(offsets) .. table.concat(sizes)
    .. table.concat(texts)
end

test("TIFF: data that is missing is an error, whatever the sizes say", function()
  local function shape(bytes)
    write(bytes)
    return table.concat(data.image(path).shape, ",")
  end
  local texts = {}
  for i = 1, 6 do texts[i] = ("x"):rep(24) end
  local tile, tiles = ("x"):rep(1024), { [322] = 32, [323] = 32 }
  local jpeg, grey = data.read "image_cases/grey.jpg", data.image "image_cases/grey.jpg"
  local width, height = grey:size(2), grey:size(1)
  -- Whole files, and how each is damaged.
  for _, case in ipairs {
    { "grey", { 6, 8, { ("x"):rep(48) } }, { { 6, 9 }, { 7, 8 }, { 6, 2 ^ 23 }, { 2 ^ 20, 8 } } },
    { "strips", { 6, 24, texts, { [278] = 4 } }, { { 6, 25 }, { 6, 2 ^ 23 }, { 7, 24 } } },
    { "RGB", { 2, 24, texts, { [277] = 3, [262] = 2, [278] = 4 } },
      { { 2, 25 }, { 2, 2 ^ 23 }, { 3, 24 } } },
    { "planes", { 6, 8, texts, { [277] = 3, [262] = 2, [278] = 4, [284] = 2 } },
      { { 6, 9 }, { 7, 8 }, { 6, 2 ^ 23 } } },
    { "tiles", { 40, 32, { tile, tile }, tiles }, { { 40, 33 }, { 65, 32 }, { 40, 2 ^ 22 } } },
    { "fax", { 6, 8, { "\0\1\1\1" }, { [258] = 1, [259] = 4 } }, { { 6, 2 ^ 23 } } },
    { "JPEG", { width, height, { jpeg }, { [259] = 7 } },
      { { width, height + 8 }, { width, 2 ^ 23 }, { width + 8, height } } },
  } do
    local kind, whole, damages = unpack(case)
    if kind ~= "fax" then
      expect_equal(shape(tiff(unpack(whole))), ("3,%d,%d"):format(whole[2], whole[1]))
    end
    for _, damage in ipairs(damages) do
      local fields = {}
      for tag, value in pairs(whole[4] or {}) do fields[tag] = value end
      for _, rows in ipairs { fields[278] or whole[2], damage[2] } do
        if not fields[322] then fields[278] = rows end
        expect_refused(tiff(damage[1], damage[2], whole[3], fields))
      end
    end
    local cut = tiff(unpack(whole)):sub(1, -#whole[3][1])
    expect_refused(cut, "truncated")
  end
end)

test("a changed byte gives an image or an error", function()
  for name in pairs(expected) do
    local bytes = data.read("image_cases/" .. name)
    for at = 1, #bytes, 3 do
      for _, change in ipairs { 1, 128, 255 } do
        local byte = string.char((bytes:byte(at) + change) % 256)
        write(bytes:sub(1, at - 1) .. byte .. bytes:sub(at + 1))
        local ok, image = pcall(data.image, path)
        if ok then
          expect_equal(image:dim(), 3)
        else
          assert(tostring(image):find(path, 1, true), image)
        end
      end
    end
  end
end)

test("BMP: the first row may come first", function()
  local bytes, pixels = data.read "image_cases/rgb.bmp", expected["rgb.bmp"]
  local height, start = bytes:byte(23), bytes:byte(11)
  local upside_down = bytes:sub(1, 22) .. string.char(256 - height, 255, 255, 255)
    .. bytes:sub(27)
  assert(height == pixels:size(1) and start == 54)
  write(upside_down)
  expect_same(data.image(path), pixels:flip { 1 })
end)

local function big_endian(n)
  return string.char(math.floor(n / 2 ^ 24), math.floor(n / 2 ^ 16) % 256,
    math.floor(n / 256) % 256, n % 256)
end

test("what is no image, too many pixels", function()
  expect_refused("", "not a PNG, JPEG, WebP, GIF, BMP or TIFF file")
  expect_refused("RIFF\1\0\0\0WAVE", "not a PNG, JPEG, WebP, GIF, BMP or TIFF file")
  expect_refused("GIF89a", "not a valid GIF file")
  local rle = data.read "image_cases/palette.bmp"
  expect_refused(rle:sub(1, 30) .. "\1" .. rle:sub(32), "compression 1")
  -- A header, with its checksum, and the beginning of the data.
  expect_refused("\137PNG\r\n\26\n" .. big_endian(13) .. "IHDR" .. big_endian(100000)
    .. big_endian(100000) .. "\8\2\0\0\0" .. big_endian(0x27309C9F)
    .. big_endian(9) .. "IDAT", "100000 x 100000 pixels")
  expect_error(function() data.image "nowhere.png" end, "image_spec.lua:", "nowhere.png")
  expect_error(function() data.image "image_cases" end, "image_spec.lua:", "image_cases")
end)

test("image_processor: sizes as bare numbers, parts left out", function()
  local image = torch.randint(0, 256, { 3, 20, 31 }):to "uint8"
  local function shape(config)
    return table.concat(data.image_processor(config)(image).shape, ",")
  end
  expect_equal(shape { size = 8 }, "1,3,8,8")
  expect_equal(shape { size = 8, crop_size = 8, do_center_crop = true }, "1,3,8,8")
  expect_equal(shape { size = { shortest_edge = 8 } }, "1,3,8,12")
  expect_equal(shape { size = { height = 5, width = 9 } }, "1,3,5,9")
  expect_equal(shape { do_resize = false }, "1,3,20,31")
  expect_equal(shape { do_resize = false, do_center_crop = true, crop_size = { height = 4,
    width = 6 } }, "1,3,4,6")
  local raw = data.image_processor { do_resize = false, do_rescale = false, do_normalize = false }
  expect_same(raw(image)[0], image:float())
end)

test("image_processor: the processors of transformers by their names", function()
  local image = torch.randint(0, 256, { 3, 20, 31 }):to "uint8"
  local function made(config) return data.image_processor(config)(image)[0] end
  local box = { height = 12, width = 12 }
  for _, pair in ipairs {
    { { image_processor_type = "ViTImageProcessor", size = 12 }, { size = box } },
    { { feature_extractor_type = "ViTFeatureExtractor", size = { 12, 9 } },
      { size = { height = 12, width = 9 } } },
    { { image_processor_type = "ViTImageProcessorFast", size = 12, crop_size = 3,
      do_convert_rgb = true, do_pad = false }, { size = box } },
    -- A number is a square there, cut out or not.
    { { image_processor_type = "DeiTImageProcessor", size = 12, crop_size = 9 },
      { size = box, resample = 3, do_center_crop = true, crop_size = 9 } },
    { { image_processor_type = "CLIPImageProcessor", size = 12, crop_size = 9 },
      { size = { shortest_edge = 12 }, resample = 3, do_center_crop = true, crop_size = 9,
        image_mean = { 0.48145466, 0.4578275, 0.40821073 },
        image_std = { 0.26862954, 0.26130258, 0.27577711 } } },
    { { feature_extractor_type = "BeitFeatureExtractor", size = 12, crop_size = 9,
      reduce_labels = false }, { size = box, resample = 3, do_center_crop = true, crop_size = 9 } },
    -- Scaled to 12 / 0.75, and cut.
    { { feature_extractor_type = "ConvNextFeatureExtractor", size = 12, crop_pct = 0.75 },
      { size = { shortest_edge = 16 }, do_center_crop = true, crop_size = 12 } },
    { { image_processor_type = "ConvNextImageProcessor" },
      { size = { height = 384, width = 384 } } },
  } do
    expect_same(made(pair[1]), made(pair[2]))
  end
end)

test("image_processor: maps of labels", function()
  local map = torch.arange(6):view { 2, 3 }
  map[1][2] = 255
  local image = torch.zeros({ 3, 2, 3 }, { dtype = "uint8" })
  local config = { image_processor_type = "SegformerImageProcessor",
    size = { height = 4, width = 3 }, reduce_labels = true }
  local prepare = data.image_processor(config)
  local pixels, _, labels = prepare({ image, image }, { map, map + 0 })
  expect_equal(table.concat(pixels.shape, ","), "2,3,4,3")
  expect_equal(labels.dtype .. table.concat(labels[1]:reshape { -1 }:tolist(), " "),
    "int64" .. "255 0 1 255 0 1 2 3 255 2 3 255")
  expect_error(function() prepare(image, map:float()) end, "image_spec.lua:", "map 1", "integers")
  expect_error(function() data.image_processor {} (image, map) end, "image_spec.lua:",
    "SegformerImageProcessor")
end)

test("image_processor: images of different sizes, with a mask", function()
  local function shape(config, ...)
    config.feature_extractor_type = "DetrFeatureExtractor"
    return table.concat(data.image_processor(config) { ... }.pixel_mask.shape, ",")
  end
  local wide = torch.zeros({ 3, 20, 40 }, { dtype = "uint8" })
  local high = wide:transpose(1, 2):narrow(1, 0, 30)
  expect_equal(shape({ size = 10, max_size = 30 }, wide), "1,10,20")
  expect_equal(shape({ size = 10, max_size = 15 }, wide), "1,8,15")  -- 7.5, rounded
  expect_equal(shape({ size = { height = 5, width = 6 } }, wide, high), "2,5,6")
  local config = { image_processor_type = "DetrImageProcessor",
    size = { shortest_edge = 10, longest_edge = 30 } }
  local batch = data.image_processor(config) { wide, high + 255 }
  expect_equal(table.concat(batch.pixel_values.shape, ","), "2,3,15,20")
  expect_equal(batch.pixel_mask:sum():item(), 10 * 20 + 15 * 10)
  expect_equal(batch.pixel_values[1]:narrow(2, 10, 10):abs():max():item(), 0)
  config.size = { shortest_edge = 10 }
  expect_error(function() data.image_processor(config) end, "image_spec.lua:", "size",
    "{shortest_edge, longest_edge}")
end)

test("image_processor: rows of patches", function()
  local config = { image_processor_type = "Siglip2ImageProcessor", patch_size = 4,
    max_num_patches = 7, do_rescale = false, do_normalize = false }
  local wide = torch.arange(3 * 8 * 12):view { 3, 8, 12 }:remainder(251):to "uint8"
  local batch = data.image_processor(config) { wide, wide:narrow(2, 0, 4) }
  expect_equal(table.concat(batch.pixel_values.shape, ","), "2,7,48")
  expect_equal(table.concat(batch.spatial_shapes:reshape { -1 }:tolist(), ","), "2,3,3,2")
  expect_equal(table.concat(batch.pixel_attention_mask[1]:tolist(), ""), "1111110")
  -- The second patch of the first image, which keeps its size: rows of pixels, channels last.
  expect_same(batch.pixel_values[0][1], wide:narrow(1, 0, 4):narrow(2, 4, 4):permute { 1, 2, 0 }
    :reshape { -1 }:float())
  config.do_resize = false
  expect_error(function() data.image_processor(config)(torch.zeros({ 3, 12, 12 },
    { dtype = "uint8" })) end, "image_spec.lua:", "9 patches", "max_num_patches, 7")
end)

-- tests/peers compares them with transformers.
test("image_processor: tiles, and images that keep their sizes", function()
  local image = torch.randint(0, 256, { 3, 20, 30 }, { generator = torch.Generator(1) }):to "uint8"
  local function made(kind, options)
    options.image_processor_type = kind .. "ImageProcessor"
    local pixels, infos = data.image_processor(options) { image }
    return pixels, infos[1]
  end
  local box = { height = 12, width = 12 }
  local function resized(height, width)
    return data.image_processor({ size = { height = height, width = width }, resample = 3 }) {
      image }[0]
  end
  local half = { image_mean = { 0.5, 0.5, 0.5 }, image_std = { 0.5, 0.5, 0.5 }, resample = 3 }
  local function with(options)
    for key, value in pairs(half) do options[key] = value end
    return options
  end

  local tiles, info = made("GotOcr2", with { size = box, crop_to_patches = true, max_patches = 6 })
  expect_equal(info.n_tiles .. " " .. table.concat(tiles.shape, ","), "7 7,3,12,12")
  expect_same(torch.cat({ tiles[0], tiles[1], tiles[2] }, 2), resized(24, 36):narrow(1, 0, 12))
  expect_same(tiles[6], resized(12, 12))
  tiles, info = made("Idefics3", with { size = { longest_edge = 24 },
    max_image_size = { longest_edge = 12 } })
  expect_equal(("%d %d %d"):format(info.n_tiles, info.rows, info.columns), "5 2 2")
  expect_equal(table.concat(tiles.shape, ","), "5,3,12,12")
  tiles, info = made("Pixtral", with { size = { longest_edge = 15 }, patch_size = 4 })
  expect_equal(table.concat(info.image_sizes, ","), "12,16")
  expect_same(tiles[0], resized(12, 16))
  local canvas = with { size = box, max_patches = 6 }
  tiles, info = made("Llama4", canvas)
  expect_equal(("%d %d %d"):format(info.n_tiles, info.rows, info.columns), "7 2 3")
  local whole = data.image_processor { do_resize = false } { image }[0]
  testing.expect_close(torch.cat({ tiles[0], tiles[1], tiles[2] }, 2):narrow(2, 0, 30),
    whole:narrow(1, 0, 12), 0, 0.005)  -- colours are rounded to bfloat16
  expect_equal(tiles[5]:narrow(1, 8, 4):eq(-1):all():item(), true)
  testing.expect_close(tiles[6], resized(12, 12), 0, 0.005)
  canvas.resize_to_max_canvas = true
  testing.expect_close(made("Llama4", canvas)[5],
    resized(24, 36):narrow(1, 12, 12):narrow(2, 24, 12), 0, 0.005)
  canvas.size = { height = 12, width = 13 }
  expect_error(function() made("Llama4", canvas) end, "a square size")
  local next_options = with { size = { shortest_edge = 12 }, crop_size = box,
    image_grid_pinpoints = { { 12, 24 }, { 24, 12 } } }
  tiles, info = made("LlavaNext", next_options)
  expect_equal(table.concat(tiles.shape, ",") .. " " .. table.concat(info.image_sizes, ","),
    "1,3,3,12,12 20,30")
  expect_same(tiles[0][0], resized(12, 12))
  -- The grid is 18 pixels wide in 24: black at both sides.
  expect_same(torch.cat({ tiles[0][1], tiles[0][2] }, 2):narrow(2, 3, 18), resized(12, 18))
  expect_equal(tiles[0][1]:narrow(2, 0, 3):eq(-1):all():item(), true)
  expect_error(function() made("LlavaNext", with { image_grid_pinpoints = { { 12 } } }) end,
    "image_grid_pinpoints", "pairs")

  -- A folder of version 5 of transformers.
  local dir = testing.folder()
  testing.write(dir .. "/processor_config.json", [==[{"image_processor": {
    "image_processor_type": "LlavaNextImageProcessorFast", "size": {"shortest_edge": 12},
    "crop_size": {"height": 12, "width": 12}, "image_grid_pinpoints": [[12, 24], [24, 12]],
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}}]==])
  expect_same(data.image_processor(dir) { image }, tiles)
end)

test("image_processor: other processors and steps are refused", function()
  local function expect_unsupported(config, ...)
    expect_error(function() data.image_processor(config) end, "image_spec.lua:", ...)
  end
  for _, kind in ipairs { "EfficientNetImageProcessor", "MobileNetV2FeatureExtractor",
    "ViTHybridImageProcessor" } do
    expect_unsupported({ image_processor_type = kind }, kind, "CLIPImageProcessor")
  end
  expect_unsupported({ crop_pct = 0.875, size = 224 }, "crop_pct")
  expect_unsupported({ image_processor_type = "ViTImageProcessor", do_pad = true }, "do_pad")
  expect_unsupported({ image_processor_type = "ViTImageProcessor", do_center_crop = true },
    "do_center_crop")
  for _, kind in ipairs { "ViTImageProcessor", "DeiTImageProcessor" } do
    expect_unsupported({ image_processor_type = kind, size = { shortest_edge = 224 } }, "size",
      "{height, width}")
  end
  expect_unsupported({ size = { shortest_edge = 224, longest_edge = 300 } }, "size")
end)

test("image_processor: misuse", function()
  local function expect_misuse(config, ...)
    expect_error(function() data.image_processor(config) end, "image_spec.lua:", ...)
  end
  expect_misuse("nowhere", "there is no file or folder nowhere here")
  expect_misuse(3, "number")
  expect_misuse({ resample = 0 }, "resample", "2 (bilinear)")
  expect_misuse({ size = { longest_edge = 3 } }, "size", "shortest_edge")
  expect_misuse({ size = -1 }, "size")
  expect_misuse({ image_mean = { 1 } }, "image_mean", "got 1")
  expect_misuse({ do_resize = "yes" }, "do_resize", "boolean")
  local process = data.image_processor { do_resize = false, do_center_crop = true, crop_size = 30 }
  local where = "image_spec.lua:"
  expect_error(function() process(torch.zeros { 3, 8, 8 }) end, where, "uint8", "float32 [3, 8, 8]")
  expect_error(function() process(torch.zeros({ 3, 8, 9 }, { dtype = "uint8" })) end, where,
    "9 x 8", "30 x 30")
  expect_error(function() process {} end, where, "no images")
  expect_error(function() process { 3 } end, where, "got number")
end)

test("make_grid puts images beside each other, as torchvision's", function()
  local images = torch.arange(1, 4):view { 3, 1, 1, 1 }:expand(3, 1, 2, 3):to "uint8"
  local grid = data.make_grid(images, { nrow = 2, padding = 1, pad_value = 9 })
  expect_equal(grid.dtype .. " " .. table.concat(grid.shape, ","), "uint8 3,7,9")
  local rows = {}
  for i, row in ipairs(grid[1]:tolist()) do rows[i] = table.concat(row) end
  expect_equal(table.concat(rows, " "),
    "999999999 911192229 911192229 999999999 933399999 933399999 999999999")
  expect_equal(table.concat(data.make_grid(torch.rand { 10, 3, 4, 4 }).shape, ","), "3,14,50")
  local where = "image_spec.lua:"
  expect_error(function() data.make_grid(torch.zeros { 0, 3, 4, 4 }) end, where, "no images")
  expect_error(function() data.make_grid(torch.zeros { 2, 4, 4, 4 }) end, where, "[2, 4, 4, 4]")
  expect_error(function() data.make_grid(images, { nrow = 0 }) end, where, "nrow")
end)

test("save_image writes what image reads", function()
  local saved = testing.folder() .. "/saved.png"
  local pixels = torch.arange(3 * 4 * 5):view { 3, 4, 5 }:to "uint8"
  data.save_image(pixels, saved)
  expect_same(data.image(saved), pixels)
  data.save_image(torch.tensor { { { -1, 0.5, 2 } } }, saved)
  expect_equal(table.concat(data.image(saved)[2]:reshape { -1 }:tolist(), " "), "0 128 255")
  local where = "image_spec.lua:"
  expect_error(function() data.save_image(torch.zeros { 3, 1, 1 } / 0, saved) end, where, "NaN")
  expect_error(function() data.save_image(torch.zeros { 3, 4 }, saved) end, where, "[3, 4]")
  expect_error(function() data.save_image(pixels, "/nowhere/x.png") end, where, "/nowhere/x.png")
end)

test("save_image: texts", function()
  local saved = testing.folder() .. "/texts.png"
  local pixels = torch.zeros({ 3, 2, 2 }, { dtype = "uint8" })
  data.save_image(pixels, saved, { metadata = { Title = "a taxi", Steps = 25, Ort = "Köln" } })
  expect_same(data.image(saved), pixels)
  -- By the format: length, type, keyword, flags; zlib's crc32 of "iTXtTitle\0\0\0\0\0a taxi".
  local bytes = data.read(saved)
  assert(bytes:find("\0\0\0\16iTXtTitle\0\0\0\0\0a taxi\120\122\234\197", 1, true), "no such chunk")
  assert(bytes:find("Steps\0\0\0\0\00025", 1, true) and bytes:find("Köln", 1, true))
  local where = "image_spec.lua:"
  local function with(metadata)
    return function() data.save_image(pixels, saved, { metadata = metadata }) end
  end
  expect_error(with { [""] = "x" }, where, "1 to 79 ASCII characters")
  expect_error(with { ["Ä"] = "x" }, where, "1 to 79 ASCII characters")
  expect_error(with { Title = {} }, where, "metadata.Title", "got table {}")
end)

test("save_image: JPEG files, and their comment", function()
  local saved = testing.folder() .. "/texts.JPG"
  local pixels = torch.full({ 3, 9, 7 }, 200, { dtype = "uint8" })
  data.save_image(pixels, saved, { metadata = { Title = "a taxi", Steps = 25 } })
  expect_same(data.image(saved), pixels)
  assert(data.read(saved):find("^\255\216\255\254\0\25Steps: 25\nTitle: a taxi\255"))
  local noise = torch.randint(0, 256, { 3, 64, 64 }):to "uint8"
  data.save_image(noise, saved)
  local size = #data.read(saved)
  data.save_image(noise, saved, { quality = 20 })
  assert(#data.read(saved) < size / 2)
  expect_error(function() data.save_image(pixels, saved, { quality = 0 }) end, "1 to 100, got 0")
  expect_error(function()
    data.save_image(pixels, saved, { metadata = { Title = ("x"):rep(70000) } })
  end, "room for 65533 bytes")
end)

test("show_image: blocks of two pixels, and the protocols of terminals", function()
  local terminal_image = require "redco.data.terminal_image"
  local red, blue = { 255, 0, 0 }, { 0, 0, 255 }
  expect_equal(terminal_image.text("blocks", nil, { { red, red }, { blue, blue }, { blue, red } }),
    "\27[38;2;255;0;0m\27[48;2;0;0;255m▀▀\27[0m\n\27[38;2;0;0;255m\27[49m▀"
      .. "\27[38;2;255;0;0m\27[49m▀\27[0m\n")
  expect_equal(terminal_image.text("kitty", "abcd"), "\27_Ga=T,f=100,m=0;YWJjZA==\27\\\n")
  expect_equal(terminal_image.text("iterm2", "abc"), "\27]1337;File=inline=1;size=3:YWJj\7\n")
  local text = terminal_image.text("sixel", nil, { { red, red }, { blue, blue }, { blue, red } })
  assert(text:find('^\27Pq"1;1;2;3#0;2;0;0;0#1;2;0;0;20'), text)
  -- Rows are bits: red is in rows 1 and (on the right) 3, blue in rows 2 and (on the left) 3.
  expect_equal(text:match "#215;[%d;]+(.*)$", "#180@D$#5EA-\27\\\n")
  local pieces = terminal_image.text("kitty", ("x"):rep(4000))
  assert(pieces:find "^\27_Ga=T,f=100,m=1;" and pieces:find "\27_Gm=0;")
  local function protocol(variables)
    return terminal_image.protocol(function(name) return variables[name] end)
  end
  expect_equal(protocol { TERM = "xterm-kitty" }, "kitty")
  expect_equal(protocol { TERM_PROGRAM = "WezTerm" }, "iterm2")
  expect_equal(protocol { TERM = "xterm" }, "blocks")
  expect_equal(protocol { TERM = "foot" }, "sixel")
  expect_error(function() data.show_image(torch.zeros { 3, 2, 2 }, { protocol = "ascii" }) end,
    "'kitty', 'iterm2', 'sixel' or 'blocks'")
end)

testing.finish()
