-- Models of sound that write characters: their tokenizer, beam search, loss and training.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local vocab = { ["<pad>"] = 0, ["<unk>"] = 4, ["|"] = 1, a = 2, ["é"] = 3 }
local tokenizer = data.ctc_tokenizer { vocab = vocab }

test("characters", function()
  expect_equal(table.concat(tokenizer.encode "aé az", " "), "2 3 1 2 4")
  expect_equal(tokenizer.decode { 1, 2, 2, 0, 2, 3, 3, 1, 0, 1, 2, 0 }, "aaé  a")
  expect_equal(tokenizer.decode(torch.tensor { 0, 0, 2 }), "a")
  expect_equal(tokenizer.decode {}, "")
  expect_equal(tokenizer.pad_token_id, 0)
  local upper = data.ctc_tokenizer { vocab = { ["<pad>"] = 0, A = 1 }, do_lower_case = true }
  expect_equal(upper.decode(upper.encode "aa"), "a")
  expect_error(function() upper.encode "b" end, "ctc_spec.lua:", "'B'", "<unk>")
  expect_error(function() data.ctc_tokenizer { vocab = { a = 0 } } end, "'<pad>'", "padding token")
  expect_error(function() data.ctc_tokenizer { vocab = { ["<pad>"] = 0.5 } } end, "0.5")
  expect_error(function() data.ctc_tokenizer {} end, "vocab is nil")
  expect_error(function() tokenizer.decode(torch.zeros { 2, 3 }) end, "one text")
  expect_error(function() tokenizer.beam_search(torch.zeros { 3 }) end, "[frames, tokens]")
end)

-- The probability of each text, by all ways to write it.
local function probabilities(logits)
  local p, sums = logits:double():softmax(-1):tolist(), {}
  local function follow(frame, ids, probability)
    if frame > #p then
      local text = tokenizer.decode(ids)
      sums[text] = (sums[text] or 0) + probability
      return
    end
    for id = 0, #p[1] - 1 do
      ids[frame] = id
      follow(frame + 1, ids, probability * p[frame][id + 1])
    end
    ids[frame] = nil
  end
  follow(1, {}, 1)
  return sums
end

test("beam search finds the most probable texts", function()
  for seed = 1, 5 do
    local logits = torch.randn({ 5, 4 }, { generator = torch.Generator(seed) }) * 2
    logits:select(1, 1):fill_(-1e4)  -- no blanks at the ends of texts, which are removed
    local texts, scores = tokenizer.beam_search(logits, { num_beams = 1000 })
    local expected = probabilities(logits)
    for i, text in ipairs(texts) do
      local found = torch.tensor(math.exp(scores[i]))
      testing.expect_close(found, torch.tensor(expected[text]), 1e-5, 1e-7)
      if i > 1 then assert(scores[i] <= scores[i - 1]) end
    end
    local narrow = tokenizer.beam_search(logits, { num_beams = 8 })
    expect_equal(narrow[1], texts[1])
    expect_equal(#narrow, 8)
  end
end)

local config = { model_type = "wav2vec2", vocab_size = 5, hidden_size = 16,
  num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 16, conv_dim = { 8, 8 },
  conv_kernel = { 4, 2 }, conv_stride = { 2, 2 }, num_conv_pos_embeddings = 4,
  num_conv_pos_embedding_groups = 2, mask_time_prob = 0.2, mask_time_length = 2,
  mask_feature_prob = 0.1, mask_feature_length = 2, ctc_loss_reduction = "mean",
  hidden_dropout = 0, attention_dropout = 0, activation_dropout = 0, final_dropout = 0 }

local parakeet = { model_type = "parakeet_ctc", vocab_size = 6, pad_token_id = 5, encoder_config = {
  hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 2, intermediate_size = 12,
  conv_kernel_size = 3, subsampling_factor = 2, subsampling_conv_channels = 4, num_mel_bins = 4 } }

local function merged(...)
  local c = {}
  for _, list in ipairs { ... } do
    for key, value in pairs(list) do c[key] = value end
  end
  return c
end

local function batch()
  return { input_values = torch.randn({ 4, 80 }, { generator = torch.Generator(1) }),
    labels = torch.tensor { { 2, 3, 2 }, { 3, 3, -100 }, { 2, -100, -100 }, { 1, 2, 3 } } }
end

test("a model learns to write, with masked spans and left-out layers", function()
  local model = redco.models.from_config(config, { generator = torch.Generator(2) })
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params, loss_fn = model.loss_fn,
    collate_fn = function() return batch() end,
    optimizer = redco.optim.adamw { learning_rate = 5e-3, weight_decay = 0 },
  }
  local before = model.loss(model.params, batch()):item()
  for _ = 1, 80 do trainer:train { examples = { 1, 2, 3, 4 }, per_device_batch_size = 4 } end
  local after = model.loss(trainer.params, batch()):item()
  assert(after < before / 4, before .. " " .. after)
end)

test("masked spans are as long and as many as the configuration says", function()
  local spec_augment = require "redco.models.sound.spec_augment"
  local c = { mask_time_prob = 0.3, mask_time_length = 3, mask_time_min_masks = 0,
    mask_feature_prob = 0 }
  local x, vector = torch.zeros { 200, 40, 2 }, torch.ones { 2 }
  local lengths = torch.arange(200) % 35 + 6
  local mask = torch.arange(40):unsqueeze(0):lt(lengths:unsqueeze(1))
  local y = spec_augment.apply(c, x, mask, vector, redco.Rng(3)):select(2, 0)
  expect_equal(y:masked_select(mask:logical_not()):sum():item(), 0)
  local share = y:sum():item() / lengths:sum():item()
  assert(share > 0.2 and share < 0.31, share)
  for _, row in ipairs(y:tolist()) do
    local text = table.concat(row, "")
    for run in text:gmatch "1+" do assert(#run >= 3, text) end
  end
end)

test("sounds are rows with mean 0 and variance 1", function()
  local sounds = { torch.randn { 30 } * 3 + 1, torch.randn { 50 } }
  local config_of = { feature_extractor_type = "Wav2Vec2FeatureExtractor",
    return_attention_mask = true }
  local values, mask = data.feature_extractor(config_of)(sounds, { sampling_rate = 16000 })
  expect_equal(mask:sum(1):tolist()[1], 30)
  local first = values[0]:narrow(0, 0, 30)
  assert(math.abs(first:mean():item()) < 1e-5)
  assert(math.abs(first:var { correction = 0 }:item() - 1) < 1e-3)
  expect_equal(values[0]:narrow(0, 30, 20):abs():sum():item(), 0)
  config_of.return_attention_mask = false
  local whole, none = data.feature_extractor(config_of)(sounds)
  expect_equal(none, nil)
  assert(math.abs(whole[0]:mean():item()) < 1e-5)
  expect_error(function() data.feature_extractor(config_of)(sounds, { sampling_rate = 8000 }) end,
    "8000", "16000")
end)

test("refusals name the key and the way out", function()
  local function open(changes)
    return redco.models.from_config(merged(config, changes))
  end
  local summed = open { ctc_loss_reduction = "sum" }
  expect_error(function() summed.loss(summed.params, batch()) end, "ctc_loss_reduction", "mean")
  expect_error(function() open { add_adapter = true } end, "add_adapter")
  expect_error(function() open { conv_kernel = { 1 } } end, "conv_kernel has 1 numbers")
  expect_error(function() open { feat_extract_norm = "batch" } end, "'batch'", "'layer'")
  expect_error(function() summed(summed.params, { input_values = torch.zeros { 1, 3 } }) end,
    "at least one frame")
  expect_error(function() summed(summed.params, { input_values = torch.zeros { 3 } }) end,
    "[batch, samples]")
end)

test("greedy decoding: the most probable of each frame, and blanks on padding", function()
  local model = redco.models.from_config(parakeet, { generator = torch.Generator(1) })
  local x = torch.randn({ 2, 12, 4 }, { generator = torch.Generator(2) })
  local mask = torch.ones({ 2, 12 }, { dtype = "int64" })
  mask:narrow(0, 1, 1):narrow(1, 7, 5):fill_(0)
  local inputs = { input_features = x * mask:unsqueeze(-1), attention_mask = mask }
  local ids = model.generate(model.params, inputs)
  local expected = model(model.params, inputs):argmax(-1)
  expect_equal(table.concat(ids.shape, ","), "2,6")
  testing.expect_close(ids:narrow(0, 0, 1), expected:narrow(0, 0, 1), 0, 0)
  testing.expect_close(ids[1]:narrow(0, 0, 4), expected[1]:narrow(0, 0, 4), 0, 0)
  expect_equal(table.concat(ids[1]:narrow(0, 4, 2):tolist(), ","), "5,5")
  -- Padding, which has no sound, changes nothing.
  local alone = { input_features = x:narrow(0, 1, 1):narrow(1, 0, 7) }
  testing.expect_close(model(model.params, alone), model(model.params, inputs):narrow(0, 1, 1)
    :narrow(1, 0, 4), 1e-5, 1e-6)
  expect_error(function() model.generate(model.params, inputs, { num_beams = 2 }) end,
    "ctc_spec.lua:", "num_beams")
  local samples = redco.models.from_config(config, { generator = torch.Generator(1) })
  local written = samples.generate(samples.params, { input_values = torch.randn { 2, 80 } })
  expect_equal(table.concat(written.shape, ","), "2,19")
end)

test("the layers of Parakeet that are left out in training", function()
  local c = merged(parakeet)
  c.encoder_config = merged(c.encoder_config, { layerdrop = 1 })
  local model = redco.models.from_config(c, { generator = torch.Generator(1) })
  local inputs = { input_features = torch.randn { 2, 12, 4 } }
  local last, all = model.hidden_states(model.params, inputs, { train = true, rng = redco.Rng(1) })
  testing.expect_close(last, all[1], 0, 0)
  expect_equal(#all, 3)
end)

test("what Parakeet refuses", function()
  local function opened(changes)
    return redco.models.from_config(merged(parakeet,
      { encoder_config = merged(parakeet.encoder_config, changes) }))
  end
  for _, case in ipairs {
    { { conv_kernel_size = 4 }, "conv_kernel_size is 4", "odd" },
    { { num_mel_bins = 5 }, "num_mel_bins (5)", "multiple of 2" },
    { { subsampling_factor = 1 }, "subsampling_factor is 1" },
    { { num_attention_heads = 3 }, "num_attention_heads (3)" },
  } do
    expect_error(function() opened(case[1]) end, "ctc_spec.lua:", unpack(case, 2))
  end
  local model = opened {}
  for _, case in ipairs { { 2, 12, 5 }, { 2, 4 } } do
    expect_error(function()
      model(model.params, { input_features = torch.zeros(case) })
    end, "ctc_spec.lua:", "[batch, frames, 4]", table.concat(case, ", "))
  end
  expect_error(function()
    model.loss(model.params, { input_features = torch.zeros { 2, 12, 4 } })
  end, "ctc_spec.lua:", "labels are missing")
end)

test("the tokens of a tokenizer.json", function()
  local folder = testing.folder() .. "/parakeet"
  os.execute(("mkdir -p '%s' && cp ../cases/llama/tokenizer.json '%s'"):format(folder, folder))
  local function settings(text)
    local file = assert(io.open(folder .. "/tokenizer_config.json", "w"))
    file:write(text)
    file:close()
  end
  settings '{"tokenizer_class": "ParakeetTokenizerFast", "pad_token": "<unk>"}'
  local tokens = data.ctc_tokenizer(folder)
  local ids = tokens.encode "the sea"
  local written = {}
  for _, id in ipairs(ids) do
    for _, each in ipairs { id, id, tokens.pad_token_id } do written[#written + 1] = each end
  end
  expect_equal(tokens.pad_token_id, 0)
  expect_equal(tokens.decode(written), "the sea")
  settings '{"tokenizer_class": "ParakeetTokenizerFast"}'
  expect_error(function() data.ctc_tokenizer(folder) end, "ctc_spec.lua:", "pad_token", "blank")
end)

testing.finish()
