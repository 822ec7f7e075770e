-- Encoder-decoders and ViT beyond the reference cases. Against transformers (the cases are made by
-- tests/tools/make_encoder_decoder_cases.py): distances beyond T5's buckets, stacks of different
-- sizes, classes of images, parts of different widths. And what the decoder is given, dropout,
-- captioning models from the folders of two others, what is refused.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close = testing.test, testing.expect_close
local expect_equal, expect_error = testing.expect_equal, testing.expect_error
local cases = assert(os.getenv "REDCO_SOURCE") .. "/tests/cases"

local configs = redco.data.json "encoder_decoder_cases.json"
local stored = torch.load "encoder_decoder_cases.safetensors"

local function stored_under(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

for _, name in ipairs { "t5_long", "bart_uneven", "vit", "vit_gpt2_projected", "umt5", "mt5",
  "mbart", "pegasus", "marian" } do
  local model = redco.models.from_config(configs[name])
  local params, inputs = stored_under(name .. ".p."), stored_under(name .. ".in.")

  test(name .. ": names and shapes of the parameters", function()
    for parameter, tensor in pairs(params) do
      local new = model.params[parameter] or error("there is no " .. parameter)
      testing.expect_equal(table.concat(new.shape, ", "), table.concat(tensor.shape, ", "))
    end
    for parameter in pairs(model.params) do
      assert(params[parameter], parameter .. " is none of transformers' names")
    end
  end)

  test(name .. ": logits", function()
    -- In t5_long, those of transformers differ by 2.1e-5 from float64, these on an Intel by 2.5e-5.
    expect_close(model(params, inputs), stored[name .. ".out.logits"], 1e-5, 6e-5)
  end)

  test(name .. ": the loss and all gradients", function()
    local tracked = redco.tree.map(function(t) return t:clone():requires_grad_() end, params)
    local loss = model.loss(tracked, inputs)
    expect_close(loss, stored[name .. ".out.loss"], 1e-5)
    loss:backward()
    for parameter, tensor in pairs(tracked) do
      local expected = stored[name .. ".g." .. parameter]
      assert((tensor.grad ~= nil) == (expected ~= nil), parameter)
      if expected then
        local size = math.max(expected:norm():item(), 1e-3)  -- a key's bias has none
        local ok, message = pcall(expect_close, tensor.grad, expected, 1e-4, 1e-4 * size)
        if not ok then error(parameter .. ": " .. message) end
      end
    end
  end)
end

local function new(model_type, changes, seed)
  local tiny = ({
    t5 = { vocab_size = 19, d_model = 8, d_kv = 4, d_ff = 12, num_layers = 1, num_heads = 2,
      dropout_rate = 0 },
    bart = { vocab_size = 19, d_model = 8, max_position_embeddings = 12, dropout = 0,
      encoder_layers = 1, encoder_attention_heads = 2, encoder_ffn_dim = 12,
      decoder_layers = 1, decoder_attention_heads = 2, decoder_ffn_dim = 12 },
    vit = { hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
      intermediate_size = 12, image_size = 8, patch_size = 4 },
    gpt2 = { vocab_size = 19, n_positions = 12, n_embd = 8, n_layer = 1, n_head = 2,
      bos_token_id = 2, eos_token_id = 3, embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0 },
  })[(model_type:gsub("^u?mt5$", "t5"))]
  local config = { model_type = model_type }
  for key, value in pairs(tiny) do config[key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  return redco.models.from_config(config, { generator = torch.Generator(seed or 1) })
end

local generator = torch.Generator(2)
local inputs = {
  input_ids = torch.randint(4, 19, { 2, 6 }, { generator = generator }),
  attention_mask = torch.tensor { { 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 0, 0 } },
  labels = torch.tensor { { 5, 6, 7, 3 }, { 8, 3, -100, -100 } },
}

test("decoder_input_ids are the labels, shifted right", function()
  local model = new "bart"
  local expected = torch.tensor { { 2, 5, 6, 7 }, { 2, 8, 3, 1 } }
  assert(torch.equal(model.decoder_input_ids(inputs.labels), expected))
  local all = { input_ids = inputs.input_ids, attention_mask = inputs.attention_mask,
    labels = inputs.labels, decoder_input_ids = expected }
  assert(torch.equal(model(model.params, inputs), model(model.params, all)))
  expect_equal(model.loss(model.params, inputs):item(), model.loss(model.params, all):item())
  expect_equal(inputs.decoder_input_ids, nil)
  expect_error(function() model(model.params, { input_ids = inputs.input_ids }) end,
    "encoder_decoder_spec.lua:", "neither decoder_input_ids nor labels")
  model.config.decoder_start_token_id = nil
  expect_error(function() model(model.params, inputs) end, "no decoder_start_token_id")
end)

test("with a cache the encoder runs once", function()
  local model, cache = new "t5", redco.models.new_cache()
  local decoder_input_ids = model.decoder_input_ids(inputs.labels)
  local function step(from, length, given)
    return model(model.params, { input_ids = given, attention_mask = inputs.attention_mask,
      decoder_input_ids = decoder_input_ids:narrow(1, from, length) }, { cache = cache })
  end
  local whole = model(model.params, inputs)
  expect_close(step(0, 2, inputs.input_ids), whole:narrow(1, 0, 2), 1e-5, 1e-5)
  expect_close(step(2, 2), whole:narrow(1, 2, 2), 1e-5, 1e-5)
end)

test("each kind of dropout drops, by the rng, in training only", function()
  for model_type, rates in pairs {
    t5 = { "dropout_rate" },
    bart = { "dropout", "attention_dropout", "activation_dropout" },
    vit = { "hidden_dropout_prob", "attention_probs_dropout_prob" },
  } do
    local batch = model_type == "vit"
      and { pixel_values = torch.randn({ 2, 3, 8, 8 }, { generator = generator }) } or inputs
    local plain = new(model_type)
    local expected = plain(plain.params, batch)
    for _, rate in ipairs(rates) do
      local model = new(model_type, { [rate] = 0.5 })
      local function run(seed, train)
        return model(plain.params, batch, { train = train, rng = torch.Generator(seed) })
      end
      assert(torch.equal(run(1, true), run(1, true)), rate)
      assert(not torch.equal(run(1, true), run(2, true)), rate)
      assert(not torch.equal(run(1, true), expected), rate)
      assert(torch.equal(run(1, false), expected), rate)
    end
  end
end)

-- A folder of a model with these parameters.
local function save(model, params)
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute("mkdir " .. dir) == 0)
  torch.save(params, dir .. "/model.safetensors")
  local file = assert(io.open(dir .. "/config.json", "w"))
  file:write(native.json_encode(dir, model.config))
  file:close()
  return dir
end

-- Version 5 of the library writes that heads are tied also if they are not, and says apart from it
-- whether the decoder's output is scaled.
test("T5's folders of version 5 of transformers", function()
  for _, case in ipairs {
    { "t5", true, true, true }, { "t5", false, false, false }, { "t5", false, true, false },
    { "mt5", nil, true, false }, { "mt5", nil, false, false }, { "umt5", nil, true, true },
  } do
    local model_type, scale, is_tied, is_scaled = unpack(case, 1, 4)
    local made = new(model_type, { tie_word_embeddings = is_tied }, 3)
    made.config.transformers_version, made.config.scale_decoder_outputs = "5.23.0", scale
    made.config.tie_word_embeddings = true
    local dir = save(made, made.params)
    local model = redco.models.from_pretrained(dir)
    os.execute("rm -r " .. dir)
    expect_equal(model.params["lm_head.weight"] == nil, is_tied)
    -- Only what the head reads is scaled.
    local plain = new(model_type, { tie_word_embeddings = false }, 3)
    local hidden = plain.hidden_states(plain.params, inputs)
    local factor = is_scaled and model.config.d_model ^ -0.5 or 1
    expect_close(model.hidden_states(model.params, inputs), hidden, 1e-6, 1e-7)
    local head = model.params[is_tied and "shared.weight" or "lm_head.weight"]
    expect_close(model.logits(model.params, hidden), (hidden * factor):matmul(head:t()), 1e-5, 1e-6)
  end
end)

test("a captioning model of two folders", function()
  local image_model = new("vit", { hidden_size = 12, num_labels = 3 }, 7)
  local dir = save(image_model, image_model.params)
  local text = cases .. "/gpt2"
  local function both(seed)
    return redco.models.from_encoder_decoder_pretrained(dir, text,
      { generator = torch.Generator(seed) })
  end
  local model, other = both(1), both(2)
  local text_params = redco.models.from_pretrained(text).params
  for name, tensor in pairs(image_model.params) do
    local rest = name:match "^vit%.(.*)"
    if rest then assert(torch.equal(model.params["encoder." .. rest], tensor), name) end
  end
  for name, tensor in pairs(text_params) do
    assert(torch.equal(model.params["decoder." .. name], tensor), name)
  end
  local n_new = 0
  for name, tensor in pairs(model.params) do
    local is_loaded = text_params[name:match "^decoder%.(.*)"] ~= nil
      or image_model.params["vit." .. (name:match "^encoder%.(.*)" or "")] ~= nil
    if not is_loaded then
      n_new = n_new + 1
      assert(name:find "cross_?att" or name:find "^enc_to_dec_proj", name)
    elseif name:find "weight" then
      assert(torch.equal(tensor, other.params[name]), name)
    end
  end
  expect_equal(n_new, model.config.decoder.n_layer * 8 + 2)
  assert(not torch.equal(model.params["enc_to_dec_proj.weight"],
    other.params["enc_to_dec_proj.weight"]))

  local captions = { pixel_values = torch.randn({ 2, 3, 8, 8 }, { generator = generator }),
    labels = inputs.labels }
  local ids = model.decoder_input_ids(inputs.labels)
  expect_equal(ids[{ 0, 0 }]:item(), model.config.decoder.bos_token_id)
  local logits = model(model.params, captions)
  expect_equal(table.concat(logits.shape, ", "), "2, 4, " .. model.config.decoder.vocab_size)
  captions.pixel_values = captions.pixel_values + 1
  assert(not torch.equal(model(model.params, captions), logits), "the image has no effect")

  expect_error(function() redco.models.from_encoder_decoder_pretrained(text, text) end,
    "encoder_decoder_spec.lua:", "its encoder has model_type 'gpt2'", "only 'vit'")
  expect_error(function() redco.models.from_encoder_decoder_pretrained(dir, dir .. "/none") end,
    "there is no " .. dir .. "/none/config.json")
  os.execute("rm -r " .. dir)
end)

test("a part of another model may lack only what has no effect", function()
  local image_model = new "vit"
  local params = {}
  for name, tensor in pairs(image_model.params) do params[name:gsub("^vit%.", "")] = tensor end
  params["pooler.dense.weight"] = torch.zeros { 8, 8 }
  local function load(changed)
    local dir = save(image_model, changed)
    local ok, message = pcall(redco.models.from_encoder_decoder_pretrained, dir, cases .. "/gpt2")
    os.execute("rm -r " .. dir)
    if not ok then error(message, 0) end
  end
  load(params)
  params["embeddings.cls_token"] = nil
  expect_error(function() load(params) end, "the ViTModel are missing: embeddings.cls_token")
end)

test("BART's bias of the logits may be missing, and is not trained", function()
  local model = new "bart"
  local params = redco.tree.map(function(t) return t end, model.params)
  params.final_logits_bias = nil
  local dir = save(model, params)
  local loaded = redco.models.from_pretrained(dir)
  os.execute("rm -r " .. dir)
  assert(torch.equal(loaded(loaded.params, inputs), model(model.params, inputs)))
  local tracked = redco.tree.map(function(t) return t:clone():requires_grad_() end, model.params)
  model.loss(tracked, inputs):backward()
  expect_equal(tracked.final_logits_bias.grad, nil)
end)

test("what is wrong is said by name and line", function()
  local here = "encoder_decoder_spec.lua:"
  expect_error(function() new("t5", { relative_attention_num_buckets = 2 }) end, here,
    "relative_attention_num_buckets (2)")
  expect_error(function() new("t5", { feed_forward_proj = "gated-gulu" }) end, here,
    "unknown activation 'gulu'")
  expect_error(function() new("bart", { decoder_attention_heads = 3 }) end, here,
    "d_model (8)", "decoder_attention_heads (3)")
  expect_error(function() new("bart", { encoder_layerdrop = 0.1 }) end, here,
    "encoder_layerdrop = 0.1 is not supported")
  expect_error(function() new("vit", { num_attention_heads = 3 }) end, here, "hidden_size (8)")
  local function captions(changes) redco.models.from_config {
    model_type = "vision-encoder-decoder", encoder = changes.encoder, decoder = changes.decoder,
  } end
  expect_error(function() captions { encoder = { model_type = "swin" } } end, here,
    "'swin'", "only 'vit'")
  expect_error(function() captions { encoder = { model_type = "vit", image_sise = 8 } } end, here,
    "unknown key 'image_sise'")
  expect_error(function() captions { decoder = "gpt2" } end, here, "decoder is 'gpt2'", "a table")

  local bart, vit = new "bart", new "vit"
  local long = torch.full({ 1, 13 }, 5, { dtype = "int64" })
  expect_error(function() bart(bart.params, { input_ids = long, labels = long }) end, here,
    "13 tokens", "max_position_embeddings, 12")
  expect_error(function()
    vit(vit.params, { pixel_values = torch.zeros { 1, 8, 8, 3 } })
  end, here, "pixel_values are [1, 8, 8, 3], expected [batch, 3, 8, 8]")
end)

test("generate puts the start token before decoder inputs of which no row has it", function()
  for _, name in ipairs { "bart", "t5_gated_untied", "vit_gpt2" } do
    local model = redco.models.from_pretrained(cases .. "/" .. name)
    local start = model.generation_config.decoder_start_token_id
    local given = name == "vit_gpt2" and { pixel_values = torch.randn { 2, 3, 32, 32 } }
      or { input_ids = torch.tensor { { 5, 6, 7 }, { 8, 9, 10 } } }
    local function rows(ids, mask)
      given.decoder_input_ids, given.decoder_attention_mask = torch.tensor(ids),
        mask and torch.tensor(mask)
      local tokens = model.generate(model.params, given,
        { max_new_tokens = 4, eos_token_id = false })
      local lines = {}
      for i, row in ipairs(tokens:tolist()) do lines[i] = table.concat(row, " ") end
      return table.concat(lines, "\n")
    end
    local with_start = rows { { start, 11, 12 }, { start, 13, 14 } }
    expect_equal(rows { { 11, 12 }, { 13, 14 } }, with_start)
    expect_equal(rows({ { 11, 12 }, { 13, 14 } }, { { 1, 1 }, { 1, 1 } }), with_start)
    assert(rows({ { 11, 12 }, { 13, 14 } }, { { 0, 1 }, { 0, 1 } }) ~= with_start)
    -- One row that has it, and all stay as they are.
    expect_equal(#rows { { start, 12 }, { 13, 14 } } < #with_start, true)
  end
end)

test("decoder tokens that the mask hides change nothing", function()
  for _, name in ipairs { "bart", "t5_relu_tied" } do
    local model = redco.models.from_pretrained(cases .. "/" .. name)
    local given = { input_ids = torch.tensor { { 5, 6, 7 } } }
    local function logits(ids)
      given.decoder_input_ids = torch.tensor { ids }
      given.decoder_attention_mask = torch.tensor { { 1, 0, 1, 1 } }
      return model(model.params, given)
    end
    local a, b = logits { 3, 4, 5, 6 }, logits { 3, 9, 5, 6 }
    expect_close(a:narrow(1, 2, 2), b:narrow(1, 2, 2), 0, 0)
    assert(not torch.equal(a, b))
  end
end)

test("in a text of padding alone all tokens attend to all alike", function()
  local model = redco.models.from_pretrained(cases .. "/bart")
  local ids = torch.tensor { { 5, 6, 7 }, { 8, 9, 4 } }
  local without_scores = {}
  for name, tensor in pairs(model.params) do
    local asks = name:find "encoder%.layers.*self_attn%.q_proj" or name:find "encoder_attn%.q_proj"
    if name:find "decoder.*self_attn" then asks = false end
    without_scores[name] = asks and torch.zeros_like(tensor) or tensor
  end
  local function logits(params, mask)
    return model(params, { input_ids = ids, decoder_input_ids = ids, attention_mask = mask })
  end
  torch.no_grad(function()
    expect_close(logits(model.params, torch.zeros_like(ids)), logits(without_scores), 1e-5, 1e-5)
  end)
end)

testing.finish()
