-- CLAP: what tests/cases and tests/peers do not compare with transformers.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local where = "clap_spec.lua:"
local text = { vocab_size = 12, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
  intermediate_size = 8, max_position_embeddings = 10, pad_token_id = 1 }
local audio = { window_size = 2, num_mel_bins = 4, spec_size = 8, patch_size = 2,
  patch_stride = { 2, 2 }, depths = { 1, 1 }, num_attention_heads = { 1, 2 }, hidden_size = 8,
  patch_embeds_hidden_size = 4 }

local function with(config, changes)
  local copy = {}
  for key, value in pairs(config) do copy[key] = value end
  for key, value in pairs(changes or {}) do copy[key] = value end
  return copy
end

local function new(changes, model_type, task)
  local config = model_type and with(audio, { model_type = model_type })
    or { model_type = "clap", text_config = text, projection_dim = 6,
      audio_config = with(audio, changes) }
  return redco.models.from_config(model_type and with(config, changes) or config,
    { generator = torch.Generator(1), task = task })
end

local function random(...) return torch.randn({ ... }, { generator = torch.Generator(2) }) end

test("features of the whole and of its halves", function()
  local whole, ids = new(), torch.tensor { { 5, 6, 7 }, { 8, 9, 1 }, { 4, 4, 4 } }
  local inputs = { input_ids = ids, input_features = random(2, 1, 16, 4) }
  local logits = whole(whole.params, inputs)
  expect_equal(table.concat(logits.shape, ","), "2,3")
  local sounds = whole.get_audio_features(whole.params, inputs)
  local texts = whole.get_text_features(whole.params, { input_ids = ids })
  expect_close(texts:square():sum(-1), torch.ones { 3 }, 1e-5, 1e-6)
  expect_close(logits, sounds:matmul(texts:t()) * whole.params.logit_scale_a:exp(), 1e-5, 1e-6)
  for _, half in ipairs { { "audio", "input_features", sounds }, { "text", "input_ids", texts } } do
    local config = with(whole.config[half[1] .. "_config"])
    local alone = redco.models.from_config(config, { task = "projection" })
    for name in pairs(alone.params) do alone.params[name] = whole.params[name] end
    local features = alone(alone.params, { [half[2]] = inputs[half[2]] })
    expect_close(features / features:square():sum({ -1 }, true):sqrt(), half[3], 1e-5, 1e-6)
    local last, all = whole.hidden_states(whole.params, { [half[2]] = inputs[half[2]] })
    expect_equal(last:dim(), 3)
    assert(#all >= 2)
  end
end)

test("only longer sounds have parts", function()
  local model = new({ enable_fusion = true }, "clap_audio_model")
  local x = random(2, 4, 16, 4)
  local function features(values, longer)
    return model(model.params, { input_features = values, is_longer = torch.tensor(longer) })
  end
  local other = x:clone()
  other:narrow(1, 1, 3):fill_(0)
  expect_close(features(x, { { false }, { false } }), features(other, { { 0 }, { 0 } }), 0, 0)
  local found, expected = features(x, { { true }, { false } }), features(other, { { 1 }, { 0 } })
  expect_close(found[1], expected[1], 0, 0)
  assert((found[0] - expected[0]):abs():max():item() > 1e-6)
end)

test("the loss counts the sounds of all micro-batches", function()
  local model = new()
  local inputs = { input_ids = torch.tensor { { 5, 6 }, { 8, 9 } },
    input_features = random(2, 1, 16, 4) }
  local loss, count = model.loss(model.params, inputs)
  local logits = model(model.params, inputs):t()
  local expected = redco.nn.cross_entropy(logits, torch.tensor { 0, 1 })
  expect_close(loss, expected, 1e-5, 1e-6)
  expect_equal(count:item(), 2)
  expect_error(function()
    model.loss(model.params, with(inputs, { input_ids = torch.tensor { { 5 } } }))
  end, where, "2")
end)

test("what CLAP refuses", function()
  for _, case in ipairs {
    { { num_mel_bins = 9 }, "spec_size (8)", "num_mel_bins (9)" },
    { { num_mel_bins = 2, spec_size = 7 }, "spec_size (7)", "num_mel_bins (2)" },
    { { num_attention_heads = { 1 } }, "depths has 2 numbers" },
    { { num_attention_heads = { 3, 2 } }, "stage 1", "heads, 3" },
    { { patch_stride = { 2 } }, "patch_stride has 1" },
    { { hidden_size = 9 }, "hidden_size is 9", "last stage, 8" },
    { { enable_fusion = true, fusion_type = "channel_map" }, "channel_map" },
  } do
    expect_error(function() new(case[1]) end, where, unpack(case, 2))
  end
  local model = new(nil, "clap_audio_model")
  for _, shape in ipairs { { 2, 4, 16, 4 }, { 2, 1, 17, 4 }, { 2, 1, 16, 5 }, { 2, 16, 4 } } do
    expect_error(function() model(model.params, { input_features = torch.zeros(shape) }) end, where,
      "[batch, 1, frames, 4]", "at most 16", table.concat(shape, ", "))
  end
  local fused = new({ enable_fusion = true }, "clap_audio_model")
  expect_error(function()
    fused(fused.params, { input_features = torch.zeros { 2, 4, 16, 4 } })
  end, where, "is_longer is nil", "[batch, 1]")
end)

testing.finish()
