-- Gemma 4 with images, which are patches with their columns and rows: what tests/peers does not
-- compare.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local function integers(list) return torch.tensor(list, { dtype = "int64" }) end

-- Two texts, of two images and of one, with 2, 4 and 1 features of 2 x 2 patches.
local ids = integers {
  { 3, 31, 31, 4, 31, 31, 31, 31, 5 },
  { 6, 7, 31, 8, 9, 10, 11, 12, 13 },
}
local sides = { { 4, 2 }, { 4, 4 }, { 2, 2 } }  -- columns and rows

-- Returns the places [16, 2] of an image's patches, -1 behind them.
local function places_of(columns, rows)
  local list = {}
  for i = 0, 15 do
    local row = math.floor(i / columns)
    list[i + 1] = row < rows and { i % columns, row } or { -1, -1 }
  end
  return integers(list)
end

local function images_of(list)
  local places = {}
  for i, one in ipairs(list) do places[i] = places_of(unpack(one)) end
  places = torch.stack(places)
  local pixels = torch.rand({ #list, 16, 12 }, { generator = torch.Generator(2) })
  return pixels:masked_fill(places:narrow(2, 0, 1):lt(0), 0), places
end

local model = tiny.new "gemma4"
local pixels, places = images_of(sides)

local function logits(inputs, options)
  return model(model.params, inputs, options)
end

local expected = logits { input_ids = ids, pixel_values = pixels, image_position_ids = places }

test("images by rows, and a row alone with padding", function()
  local none = torch.full({ 1, 16, 2 }, -1, { dtype = "int64" })
  local in_rows = logits { input_ids = ids,
    pixel_values = torch.cat({ pixels, torch.zeros { 1, 16, 12 } }, 0):unflatten(0, { 2, 2 }),
    image_position_ids = torch.cat({ places, none }, 0):unflatten(0, { 2, 2 }) }
  expect_close(in_rows, expected, 1e-5, 1e-5)
  local row = torch.cat({ integers { { 0, 0 } }, ids:narrow(0, 1, 1) }, 1)
  local mask = torch.ones_like(row)
  mask:narrow(1, 0, 2):fill_(0)
  local alone = logits { input_ids = row, attention_mask = mask,
    pixel_values = pixels:narrow(0, 2, 1), image_position_ids = places:narrow(0, 2, 1) }
  expect_close(alone:narrow(1, 2, 9), expected:narrow(0, 1, 1), 1e-4, 1e-5)
end)

test("patches behind those of an image count for nothing", function()
  local longer = logits { input_ids = ids, pixel_values = torch.constant_pad_nd(pixels,
    { 0, 0, 0, 4 }, 7), image_position_ids = torch.constant_pad_nd(places, { 0, 0, 0, 4 }, -1) }
  expect_close(longer, expected, 1e-5, 1e-5)
end)

test("steps with a cache", function()
  local row, cache = ids:narrow(0, 0, 1), redco.models.new_cache()
  local function step(first, n, image)
    return logits({ input_ids = row:narrow(1, first, n),
      pixel_values = image and pixels:narrow(0, image, 1),
      image_position_ids = image and places:narrow(0, image, 1) }, { cache = cache })
  end
  for _, one in ipairs { { 0, 3, 0 }, { 3, 1 }, { 4, 4, 1 }, { 8, 1 } } do
    expect_close(step(unpack(one)), expected:narrow(0, 0, 1):narrow(1, one[1], one[2]), 1e-4, 1e-5)
  end
end)

test("tokens of an image see each other in layers with a window, if the file says so", function()
  local function first_token_moves(attention)
    local config = tiny.config "gemma4"
    config.text_config = tiny.merged(config.text_config,
      { use_bidirectional_attention = attention })
    local own = redco.models.from_config(config, { generator = torch.Generator(1) })
    local function at_first(images)
      return own(own.params, { input_ids = integers { { 31, 31, 5 } }, pixel_values = images,
        image_position_ids = places:narrow(0, 0, 1) }):select(1, 0)
    end
    local one, other = pixels:narrow(0, 0, 1), pixels:narrow(0, 0, 1):clone()
    -- The second feature is of columns 2 and 3. The tower's own attention would carry that over.
    for i = 0, 1 do
      own.params["model.vision_tower.encoder.layers." .. i .. ".self_attn.o_proj.linear.weight"]
        :detach():zero_()
    end
    for _, at in ipairs { 2, 3, 6, 7 } do other:select(1, at):fill_(0.9) end
    return (at_first(one) - at_first(other)):abs():max():item() > 1e-6
  end
  expect_equal(first_token_moves(nil), false)
  expect_equal(first_token_moves "vision", true)
end)

test("what does not fit is named", function()
  local function refused(changes, ...)
    local inputs = tiny.merged({ input_ids = ids, pixel_values = pixels,
      image_position_ids = places }, changes)
    expect_error(function() logits(inputs) end, ...)
  end
  expect_error(function() logits { input_ids = ids, pixel_values = pixels } end,
    "inputs.image_position_ids is missing")
  refused({ pixel_values = pixels:narrow(2, 0, 10) }, "pixel_values of [3, 16, 10]",
    "[images, patches, 12]")
  refused({ pixel_values = pixels:narrow(1, 0, 15), image_position_ids = places:narrow(1, 0, 15) },
    "15 patches, expected a multiple of pooling_kernel_size ^ 2, 4")
  refused({ image_position_ids = places:clamp(nil, 2) }, "no multiples of pooling_kernel_size, 2")
  refused({ image_position_ids = torch.where(places:eq(3), torch.full_like(places, 9), places) },
    "a place of 9, expected one below position_embedding_size, 8")
  refused({ pixel_values = pixels:narrow(0, 0, 2), image_position_ids = places:narrow(0, 0, 2) },
    "input_ids have 7 image tokens, expected 6 for 2 images")
  expect_error(function()
    redco.data.image_processor { image_processor_type = "Gemma4ImageProcessor",
      max_soft_tokens = 100 }
  end, "max_soft_tokens is 100, expected 70, 140, 280, 560 or 1120")
end)

testing.finish()
