-- Configurations that the cases of tests/cases lack, against transformers (model_variants.json and
-- .safetensors, made by tests/tools/make_model_variants.py).
local redco = require "redco"
local testing = require "testing"

local stored = redco.torch.load "model_variants.safetensors"

local function named(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

for i, config in ipairs(redco.data.json "model_variants.json") do
  local params = named(("%d.p."):format(i - 1))
  testing.test(("variant %d, %s"):format(i, config.model_type), function()
    local model = redco.models.from_config(config)
    for name in pairs(model.params) do assert(params[name], "transformers has no " .. name) end
    for name in pairs(params) do assert(model.params[name], "there is no parameter " .. name) end
    for _, kind in ipairs { "plain", "left" } do
      local inputs = named(("%d.%s."):format(i - 1, kind))
      local expected = inputs.logits
      inputs.logits = nil
      local logits = model(params, inputs)
      if inputs.attention_mask then
        local kept = inputs.attention_mask:ne(0)
        logits, expected = logits[kept], expected[kept]
      end
      testing.expect_close(logits, expected, 1e-4, 1e-4)
    end
  end)
end

local tiny = {
  gptj = { vocab_size = 5, n_positions = 4, n_embd = 8, n_layer = 1, n_head = 2, rotary_dim = 2 },
  llama = { vocab_size = 5, hidden_size = 8, intermediate_size = 4, num_hidden_layers = 1,
    num_attention_heads = 2 },
  mistral = { vocab_size = 5, hidden_size = 8, intermediate_size = 4, num_hidden_layers = 1,
    num_attention_heads = 2, num_key_value_heads = 1 },
  opt = { vocab_size = 5, max_position_embeddings = 4, hidden_size = 8, ffn_dim = 4,
    num_hidden_layers = 1, num_attention_heads = 2 },
}

tiny.qwen2, tiny.gemma3_text, tiny.mixtral = tiny.mistral, tiny.mistral, tiny.mistral
tiny.qwen3_moe = tiny.mistral
tiny.falcon = { vocab_size = 5, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2 }
tiny.gpt_neox = tiny.falcon

local function new(model_type, changes)
  local config = { model_type = model_type }
  for _, source in ipairs { tiny[model_type], changes } do
    for key, value in pairs(source) do config[key] = value end
  end
  return redco.models.from_config(config)
end

testing.test("padding attends to the tokens in its window, or to all alike", function()
  local masks = require "redco.models.layers.masks"
  local x = redco.torch.zeros { 1, 4, 1 }
  local padding = redco.torch.tensor { { 0, 0, 1, 1 } }
  local mask = masks.both_sides({ attention_mask = padding }, x, 1)
  testing.expect_close(mask:softmax(-1)[0][0], { { 0.25, 0.25, 0.25, 0.25 }, { 0, 0, 1, 0 },
    { 0, 0, 0.5, 0.5 }, { 0, 0, 0.5, 0.5 } })
end)

testing.test("padding behind tokens sees those in its window, or else itself", function()
  local masks = require "redco.models.layers.masks"
  local padding = redco.torch.tensor { { 1, 0, 0, 1 }, { 0, 1, 1, 0 } }
  local x = redco.torch.zeros { 2, 4, 1 }
  local mask = masks.causal({ attention_mask = padding }, {}, x, { window = 2 }).mask
  testing.expect_close(mask:softmax(-1):squeeze(1), {
    { { 1, 0, 0, 0 }, { 1, 0, 0, 0 }, { 0, 0, 1, 0 }, { 0, 0, 0, 1 } },
    { { 1, 0, 0, 0 }, { 0, 1, 0, 0 }, { 0, 0.5, 0.5, 0 }, { 0, 0, 1, 0 } } })
end)

testing.test("layers with different numbers of experts report their loads", function()
  local model = redco.models.from_config { model_type = "hunyuan_v1_moe", vocab_size = 11,
    hidden_size = 8, intermediate_size = 4, num_hidden_layers = 2, num_attention_heads = 2,
    head_dim = 4, num_experts = { 2, 3 }, moe_topk = { 2, 3 } }
  local ids = redco.torch.tensor { { 1, 2, 3 } }
  local _, _, metrics = model.loss(model.params, { input_ids = ids, labels = ids })
  testing.expect_close(metrics.expert_load_max, 1)
  testing.expect_close(metrics.expert_load_min, 1)
end)

testing.test("LongT5 whose tokens see all others is T5", function()
  local config = { vocab_size = 11, d_model = 8, d_kv = 4, d_ff = 8, num_layers = 2, num_heads = 2,
    dropout_rate = 0 }
  local function opened(model_type, changes)
    local given = { model_type = model_type }
    for _, source in ipairs { config, changes or {} } do
      for key, value in pairs(source) do given[key] = value end
    end
    return redco.models.from_config(given, { generator = redco.torch.Generator(1) })
  end
  local t5 = opened "t5"
  local ids = redco.torch.tensor { { 3, 4, 5, 6, 7, 8 }, { 8, 7, 6, 0, 0, 0 } }
  local inputs = { input_ids = ids, attention_mask = ids:ne(0), decoder_input_ids = ids }
  local expected = t5(t5.params, inputs)
  for _, radius in ipairs { 2, 5, 9 } do
    local long = opened("longt5", { local_radius = radius })
    local params = {}
    for name in pairs(long.params) do
      params[name] = t5.params[name:gsub("LocalSelfAttention", "SelfAttention")]
    end
    local found = long(params, inputs)
    -- The first text is longer than the radius of 2, the second is not.
    testing.expect_close(found[1], expected[1], 1e-5, 1e-5)
    local is_equal = pcall(testing.expect_close, found[0], expected[0], 1e-5, 1e-5)
    assert(is_equal == (radius > 2), "radius " .. radius)
  end
end)

-- The weights of BART as those of LED, whose weights of global tokens are those of all.
local function as_led(params)
  local found = {}
  for name, tensor in pairs(params) do
    local own = name:gsub("^model%.", "led.")
    if own:find "embed_positions" then tensor = tensor:narrow(0, 2, tensor:size(0) - 2) end
    local layer, part, kind = own:match "^(led%.encoder.*self_attn%.)([qkvo])[%l_]+%.(%l+)$"
    local long = ({ q = "query", k = "key", v = "value" })[part]
    if long then
      own = ("%slongformer_self_attn.%s.%s"):format(layer, long, kind)
      found[("%slongformer_self_attn.%s_global.%s"):format(layer, long, kind)] = tensor
    elseif part then
      own = layer .. "output." .. kind
    end
    found[own] = tensor
  end
  return found
end

testing.test("LED is BART within large windows, and if all tokens are global", function()
  local function opened(model_type, changes)
    local config = { model_type = model_type, vocab_size = 11, d_model = 8, encoder_layers = 2,
      decoder_layers = 1, encoder_attention_heads = 2, decoder_attention_heads = 2,
      encoder_ffn_dim = 12, decoder_ffn_dim = 12, pad_token_id = 1, decoder_start_token_id = 2 }
    for key, value in pairs(changes) do config[key] = value end
    return redco.models.from_config(config)
  end
  local bart = opened("bart", { max_position_embeddings = 16 })
  local generator = redco.torch.Generator(3)
  redco.torch.no_grad(function()
    for _, leaf in pairs(bart.params) do redco.nn.init.normal_(leaf, { generator = generator }) end
  end)
  local ids = redco.torch.randint(3, 11, { 2, 9 }, { generator = generator })
  local mask = redco.torch.ones_like(ids)
  mask[1]:narrow(0, 6, 3):fill_(0)
  local inputs = { input_ids = ids, attention_mask = mask,
    decoder_input_ids = redco.torch.tensor { { 2, 3 }, { 2, 4 } } }
  local expected, params = bart(bart.params, inputs), as_led(bart.params)
  for _, case in ipairs { { 16, 0, true }, { 2, 0, false }, { 2, 1, true } } do
    local window, is_global, is_equal = unpack(case)
    local led = opened("led", { attention_window = window, max_encoder_position_embeddings = 16,
      max_decoder_position_embeddings = 16 })
    for name in pairs(led.params) do assert(params[name], name) end
    inputs.global_attention_mask = redco.torch.full_like(ids, is_global)
    local found = led(params, inputs)
    assert(pcall(testing.expect_close, found, expected, 1e-4, 1e-4) == is_equal)
  end
end)

testing.test("a mask of ones that generate gets says that padding tokens are none", function()
  local part = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
    num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4 }
  local model = redco.models.from_config { model_type = "t5gemma", encoder = part, decoder = part,
    vocab_size = 11 }
  local generator, names = redco.torch.Generator(2), {}
  for name in pairs(model.params) do names[#names + 1] = name end
  table.sort(names)
  redco.torch.no_grad(function()
    for _, name in ipairs(names) do
      redco.nn.init.normal_(model.params[name], { generator = generator })
    end
  end)
  local ids = redco.torch.tensor { { 3, 0, 0, 0 }, { 0, 4, 5, 0 }, { 0, 0, 7, 8 } }:tile { 10, 1 }
  local prompt = redco.torch.cat({ redco.torch.full({ 30, 1 }, 2),
    (redco.torch.arange(30) / 3):floor():unsqueeze(1) }, 1):to "int64"
  local inputs = { input_ids = ids, attention_mask = redco.torch.ones_like(ids),
    decoder_input_ids = prompt }
  local tokens = model.generate(model.params, inputs, { max_new_tokens = 1 })
  local expected = model(model.params, inputs):argmax(-1):narrow(1, 1, 1)
  testing.expect_equal(tokens:narrow(1, 2, 1), expected)
  inputs.attention_mask = nil  -- the encoder finds the padding
  assert(not model(model.params, inputs):argmax(-1):narrow(1, 1, 1):equal(expected))
end)

testing.test("configurations that make no model are refused", function()
  for _, case in ipairs {
    { "gptj", { n_head = 3 }, "n_embd (8)", "n_head (3)" },
    { "gptj", { rotary_dim = 6 }, "rotary_dim (6)", "4" },
    { "gptj", { rotary_dim = 3 }, "even number of elements in a head, got 3" },
    { "llama", { num_attention_heads = 4, num_key_value_heads = 3 }, "num_attention_heads (4)",
      "num_key_value_heads (3)" },
    { "llama", { head_dim = 3 }, "even number of elements in a head, got 3" },
    { "llama", { hidden_act = "bent" }, "unknown activation 'bent'" },
    { "opt", { num_attention_heads = 3 }, "hidden_size (8)", "num_attention_heads (3)" },
    { "qwen2", { layer_types = { "sliding_attention" } }, "no sliding_window",
      "use_sliding_window is false" },
    { "qwen2", { layer_types = { "full_attention", "full_attention" } }, "2 entries",
      "num_hidden_layers is 1" },
    { "qwen2", { layer_types = { "chunked_attention" } }, "chunked_attention", "not supported" },
    { "mistral", { layer_types = { "full_attention" } }, "unknown key 'layer_types'" },
    { "gemma3_text", { rope_parameters = { full_attention = { rope_theta = 100 },
      sliding_attention = { rope_theta = 10, rope_type = "linear", factor = 2 } } },
      "sliding_attention has rope_type linear" },
    { "falcon", { new_decoder_architecture = true, parallel_attn = false }, "parallel_attn" },
    { "gpt_neox", { head_dim = 2 }, "head_dim = 2" },
    { "mixtral", { num_experts_per_tok = 9 }, "num_experts_per_tok (9)", "num_local_experts (8)" },
    { "mixtral", { router_jitter_noise = 0.1 }, "router_jitter_noise = 0.1", "only 0" },
    { "opt", { layerdrop = 0.1 }, "layerdrop = 0.1", "only 0" },
  } do
    testing.expect_error(function() new(case[1], case[2]) end, "model_variants_spec.lua:",
      case[1] .. ": ", unpack(case, 3))
  end
end)

testing.test("keys that change the numbers and are not supported are refused", function()
  for key, value in pairs { quantization_config = { quant_method = "gptq" }, sliding_window = 4,
    attention_chunk_size = 2, layer_types = { "sliding_attention" }, tie_encoder_decoder = true,
    pruned_heads = { ["0"] = { 1 } } } do
    for _, model_type in ipairs { "gptj", "llama", "opt" } do
      local folder = testing.folder()
      local config = { model_type = model_type, [key] = value }
      for name, size in pairs(tiny[model_type]) do config[name] = size end
      local native = require "redco.native"
      testing.write(folder .. "/config.json", native.json_encode("config.json", config, 2))
      testing.expect_error(function() redco.models.from_config(folder) end,
        "model_variants_spec.lua:", model_type .. ": ", key, "not supported")
    end
  end
end)

testing.test("other names of a setting count, as in transformers", function()
  local model = redco.models.from_config { model_type = "gptj", vocab_size = 5,
    max_position_embeddings = 4, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    rotary_dim = 2 }
  testing.expect_equal(model.config.n_embd, 8)
  testing.expect_equal(model.config.n_layer, 1)
  testing.expect_equal(model.config.hidden_size, nil)
  testing.expect_equal(new("qwen3_moe", { num_local_experts = 3, num_experts_per_tok = 2,
    moe_intermediate_size = 4 }).config.num_experts, 3)
end)

testing.test("a token that is null has no default, and is written as null", function()
  local folder = testing.folder() .. "/null"
  local config = redco.data.json "../cases/bart/config.json"
  config.forced_eos_token_id, config.pad_token_id, config.scale_embedding = nil, nil, nil
  local text = require("redco.native").json_encode("config.json", config, 2)
  assert(os.execute("mkdir -p " .. folder) == 0)
  testing.write(folder .. "/config.json", (text:gsub("^{", [[{ "forced_eos_token_id": null,
    "pad_token_id" :null, "prefix": "a null \"null", "scale_embedding": null,]], 1)))
  local function check(given)
    testing.expect_equal(given.forced_eos_token_id, nil)
    testing.expect_equal(given.pad_token_id, nil)
    testing.expect_equal(given.prefix, 'a null "null')
    testing.expect_equal(given.scale_embedding, false)
    testing.expect_equal(given.eos_token_id, config.eos_token_id)
  end
  local model = redco.models.from_config(folder)
  check(model.config)
  model.save_pretrained(folder .. "/saved")
  assert(redco.data.read(folder .. "/saved/config.json"):find '"forced_eos_token_id": null')
  check(redco.models.from_pretrained(folder .. "/saved").config)
  testing.expect_equal(new("opt", { pad_token_id = false }).config.pad_token_id, nil)
  testing.write(folder .. "/config.json", '{ "model_type": "gptj", "rotary_dim": null }')
  testing.expect_error(function() redco.models.from_config(folder) end, "gptj", "rotary_dim",
    "null")
end)

testing.test("numbers that are real are written so: transformers 5 refuses 50 for 50.0", function()
  local folder = testing.folder() .. "/reals"
  local model = new("gemma3_text", { final_logit_softcapping = 30, rope_scaling = {
    rope_type = "linear", factor = 8 } })
  model.generation_config = { temperature = 2, top_k = 5 }
  model.save_pretrained(folder)
  local config = redco.data.read(folder .. "/config.json")
  for _, text in ipairs { '"final_logit_softcapping": 30.0', '"factor": 8.0', '"head_dim": 256',
    '"rope_theta": 1000000.0', '"attention_dropout": 0.0', '"vocab_size": 5' } do
    assert(config:find(text .. "[,\n]"), text)
  end
  local generation = redco.data.read(folder .. "/generation_config.json")
  assert(generation:find '"temperature": 2.0' and generation:find '"top_k": 5[,\n]', generation)
  testing.expect_equal(redco.models.from_pretrained(folder).config.final_logit_softcapping, 30)
end)

testing.test("inputs that are not supported are refused", function()
  local model = new("llama", {})
  local ids = redco.torch.zeros({ 1, 2 }, { dtype = "int64" })
  for _, name in ipairs { "token_type_ids", "inputs_embeds", "head_mask" } do
    testing.expect_error(function()
      model(model.params, { input_ids = ids, [name] = ids })
    end, "model_variants_spec.lua:", "llama: inputs." .. name)
  end
end)

testing.test("weights that are no numbers are refused by name", function()
  local torch = redco.torch
  local folder, model = testing.folder() .. "/weights", new("opt", {})
  model.save_pretrained(folder)
  local name = "model.decoder.layers.0.fc1.weight"
  local function load(change, options)
    local params = torch.load(folder .. "/model.safetensors")
    params[name] = change(params[name])
    torch.save(params, folder .. "/model.safetensors")
    local ok, message = pcall(redco.models.from_pretrained, folder, options)
    model.save_pretrained(folder)
    return ok, tostring(message)
  end
  local function with(value)
    return function(weight)
      weight[1][2] = value
      return weight
    end
  end
  for _, case in ipairs {
    { with(0 / 0), "has NaN" },
    { with(math.huge), "has infinity" },
    { with(-math.huge), "has infinity" },
    { function(weight) return weight:to "int8" end, "int8" },
    { function(weight) return weight:to "int64" end, "int64" },
  } do
    local ok, message = load(case[1])
    assert(not ok and message:find(name, 1, true) and message:find(case[2], 1, true), message)
  end
  -- Its sum overflows, and every number is one.
  assert(load(function(weight) return weight:fill_(6e4):to "float16" end, { dtype = "auto" }))
end)

testing.test("sizes that config.json lacks are named if the weights have others", function()
  local folder, model = testing.folder() .. "/sizes", new("mistral", {})
  model.save_pretrained(folder)
  local config = redco.data.json(folder .. "/config.json")
  config.num_key_value_heads, config.head_dim = nil, nil
  testing.write(folder .. "/config.json",
    require("redco.native").json_encode("config.json", config, 2))
  testing.expect_error(function() redco.models.from_pretrained(folder) end,
    "num_attention_heads (2)", "num_key_value_heads (8)")
  config.num_key_value_heads, config.intermediate_size = 1, nil
  testing.write(folder .. "/config.json",
    require("redco.native").json_encode("config.json", config, 2))
  testing.expect_error(function() redco.models.from_pretrained(folder) end, "gate_proj.weight",
    "expected [14336, 8]", "config.json lacks these, taken as intermediate_size = 14336")
  os.execute(("rm -r %s; cp -r ../cases/clip %s"):format(folder, folder))
  config = redco.data.json(folder .. "/config.json")
  config.vision_config.patch_size = nil
  testing.write(folder .. "/config.json",
    require("redco.native").json_encode("config.json", config, 2))
  testing.expect_error(function() redco.models.from_pretrained(folder) end,
    "patch_embedding.weight", "taken as vision_config.patch_size = 32")
end)

testing.test("learned positions and tables of them end; LLaMA's do not", function()
  local function call(model_type, length)
    local model = new(model_type, {})
    local input_ids = redco.torch.zeros({ 1, length }, { dtype = "int64" })
    return model(model.params, { input_ids = input_ids })
  end
  for _, model_type in ipairs { "gptj", "opt" } do
    testing.expect_equal(call(model_type, 4):size(1), 4)
    testing.expect_error(function() call(model_type, 5) end, "model_variants_spec.lua:",
      "5 tokens are more than", "4")
  end
  testing.expect_equal(call("llama", 3000):size(1), 3000)
end)

testing.test("every dropout drops, by the rng, where train is set", function()
  for model_type, names in pairs {
    gptj = { "embd_pdrop", "resid_pdrop", "attn_pdrop" },
    llama = { "attention_dropout" },
    opt = { "dropout", "attention_dropout" },
  } do
    for _, name in ipairs(names) do
      local rates = {}
      for _, other in ipairs(names) do rates[other] = other == name and 0.5 or 0 end
      local model = new(model_type, rates)
      local inputs = { input_ids = redco.torch.tensor { { 1, 2, 3, 4 } } }
      local function run(seed)
        return model(model.params, inputs,
          { train = seed ~= nil, rng = seed and redco.torch.Generator(seed) })
      end
      assert(redco.torch.equal(run(1), run(1)), name)
      assert(not redco.torch.equal(run(1), run(2)), name)
      assert(not redco.torch.equal(run(1), run()), name)
      assert(redco.torch.equal(run(), run()), name)
    end
  end
end)

testing.finish()
