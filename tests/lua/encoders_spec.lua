-- Encoders: what tests/peers does not compare with transformers. Names of old files, settings that
-- are refused, padding, adapters, precisions, rows of several sequences, models without a head.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local tiny = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
  num_attention_heads = 2, max_position_embeddings = 12, pad_token_id = 1 }
local names = { distilbert = { hidden_size = "dim", intermediate_size = "hidden_dim",
  num_hidden_layers = "n_layers", num_attention_heads = "n_heads" } }
local adapted = { deberta = "in_proj", ["deberta-v2"] = "query_proj", distilbert = "q_lin",
  eurobert = "q_proj", gte = "qkv_proj", modernbert = "Wqkv", mpnet = "q", new = "qkv_proj",
  nomic_bert = "Wqkv" }
local model_types = { "albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2",
  "distilbert", "electra", "ernie", "esm", "eurobert", "gte", "megatron-bert", "modernbert",
  "mpnet", "new", "nomic_bert", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl" }

local function new(model_type, task, changes)
  local config = { model_type = model_type }
  for key, value in pairs(tiny) do config[(names[model_type] or {})[key] or key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  return redco.models.from_config(config, { task = task, generator = torch.Generator(1) })
end

local ids = torch.tensor { { 3, 4, 5, 1, 1 }, { 6, 7, 8, 9, 10 } }
local mask = ids:ne(1):to "int64"

test("padding on the right changes nothing", function()
  for _, model_type in ipairs(model_types) do
    local model = new(model_type)
    local logits = model(model.params, { input_ids = ids, attention_mask = mask })
    local alone = model(model.params, { input_ids = ids:narrow(0, 0, 1):narrow(1, 0, 3) })
    expect_close(logits:narrow(0, 0, 1):narrow(1, 0, 3), alone, 1e-5, 1e-6)
    assert(logits:isfinite():all():item(), model_type)
  end
end)

test("the padding row gets no gradient but that of the head", function()
  local model = new("bert", "token_classification")
  local _, gradients = redco.value_and_grad(function(params)
    return (model.loss(params, { input_ids = ids, labels = ids:clamp(0, 1) }))
  end)(model.params)
  local rows = gradients["bert.embeddings.word_embeddings.weight"]:abs():sum { 1 }
  expect_equal(rows[1]:item(), 0)
  assert(rows[3]:item() > 0)
end)

test("a new model trains, low in memory, in bfloat16, with adapters", function()
  for _, model_type in ipairs(model_types) do
    local folder = testing.folder() .. "/" .. model_type
    new(model_type).save_pretrained(folder)
    local batch = { input_ids = ids, attention_mask = mask, labels = ids }
    local model = redco.models.from_pretrained(folder)
    local loss = model.loss(model.params, batch):item()
    local mapped = redco.models.from_pretrained(folder, { low_memory = true })
    expect_equal(mapped.loss(mapped.params, batch):item(), loss)
    local narrow = redco.models.from_pretrained(folder, { dtype = "bfloat16" })
    expect_close(torch.tensor(narrow.loss(narrow.params, batch):item()), torch.tensor(loss), 0.02)
    local _, gradients = redco.value_and_grad(function(params)
      return (model.loss(params, batch))
    end)(redco.lora.add(model.params, { r = 2, target_modules = { adapted[model_type] or "query" },
      generator = torch.Generator(1) }))
    local n_adapters = 0
    for name, gradient in pairs(gradients) do
      if name:find "lora_B" then
        n_adapters = n_adapters + 1
        assert(gradient:abs():sum():item() > 0, name)
      end
    end
    expect_equal(n_adapters, 1)
  end
end)

-- Computes with the parameters of another model.
local function same(model, other, inputs)
  expect_close(model(other.params, inputs), other(other.params, inputs), 1e-5, 1e-6)
end

test("NomicBERT: the keys of the authors' configuration", function()
  local changes = { hidden_act = "silu", rope_theta = 100, layer_norm_eps = 0.1 }
  local own = new("nomic_bert", "features", changes)
  local function authors(more)
    local config = { model_type = "nomic_bert", vocab_size = 11, n_embd = 8, n_inner = 12,
      n_layer = 1, n_head = 2, n_positions = 12, activation_function = "swiglu", prenorm = false,
      rotary_emb_base = 100, rotary_emb_fraction = 1, layer_norm_epsilon = 0.1,
      qkv_proj_bias = false, mlp_fc1_bias = false, mlp_fc2_bias = false, pad_token_id = 1 }
    for key, value in pairs(more or {}) do config[key] = value end
    return redco.models.from_config(config, { task = "features" })
  end
  same(authors(), own, { input_ids = ids, attention_mask = mask })
  same(authors { activation_function = "geglu" },
    new("nomic_bert", "features", { hidden_act = "gelu", rope_theta = 100, layer_norm_eps = 0.1 }),
    { input_ids = ids })
  changes.max_position_embeddings = 3
  changes.rope_scaling = { rope_type = "dynamic", factor = 2 }
  same(authors { rotary_scaling_factor = 2, max_trained_positions = 3 },
    new("nomic_bert", "features", changes), { input_ids = ids })
  expect_error(function() authors { activation_function = "gelu" } end, "activation_function",
    "swiglu")
  expect_error(function() authors { qkv_proj_bias = true } end, "qkv_proj_bias")
end)

test("GTE: the authors' scaling of positions stretches the base and divides all pairs", function()
  local size, factor = 4, 8
  local function scaled(theta, scaling)
    return new("new", "features", { rope_theta = theta, rope_scaling = scaling,
      initializer_range = 0.5 })
  end
  local given = scaled(100, { type = "ntk", factor = factor })
  same(scaled(100 * factor, { type = "linear", factor = factor ^ (2 / size) }), given,
    { input_ids = ids })
  expect_error(function() scaled(100, { type = "ntk", factor = factor, mixed_b = 0.5 }) end,
    "mixed_b")
  expect_error(function()
    new("gte", "features", { rope_scaling = { type = "ntk", factor = factor } })
  end, "ntk")
end)

test("decoders whose tokens attend to both sides", function()
  local function llama(changes)
    local config = { model_type = "llama", vocab_size = 11, hidden_size = 8, intermediate_size = 12,
      num_hidden_layers = 1, num_attention_heads = 2, initializer_range = 0.5 }
    for key, value in pairs(changes) do config[key] = value end
    return redco.models.from_config(config, { generator = torch.Generator(1) })
  end
  local function changes_by_last(model, inputs)
    local changed = inputs:clone()
    changed:narrow(1, 4, 1):fill_(2)
    local difference = model(model.params, { input_ids = inputs })
      - model(model.params, { input_ids = changed })
    return table.concat(difference:abs():amax({ 0, 2 }):gt(1e-6):long():tolist(), " ")
  end
  expect_equal(changes_by_last(llama {}, ids), "0 0 0 0 1")
  expect_equal(changes_by_last(llama { is_causal = false }, ids), "1 1 1 1 1")
  local mistral = { model_type = "mistral", is_causal = false, sliding_window = 1,
    num_key_value_heads = 2 }
  expect_equal(changes_by_last(llama(mistral), ids), "0 0 0 1 1")
  local gemma = { model_type = "gemma3_text", use_bidirectional_attention = true,
    sliding_window = 4, num_key_value_heads = 2, head_dim = 4, sliding_window_pattern = 2 }
  local model = llama(gemma)
  expect_equal(changes_by_last(model, ids), "0 0 1 1 1")
  expect_error(function()
    model.generate(model.params, { input_ids = ids }, { max_new_tokens = 2 })
  end, "both sides", "no text")
end)

test("old names of norms, and further heads", function()
  local source, folder = new "bert", testing.folder()
  local weights = { ["cls.seq_relationship.weight"] = torch.ones { 2, 8 },
    ["bert.pooler.dense.weight"] = torch.ones { 8, 8 },
    ["bert.embeddings.position_ids"] = torch.zeros { 1, 12 } }
  for name, tensor in pairs(source.params) do
    weights[(name:gsub("LayerNorm%.weight", "LayerNorm.gamma")
      :gsub("LayerNorm%.bias", "LayerNorm.beta"))] = tensor
  end
  source.save_pretrained(folder)
  torch.save(weights, folder .. "/model.safetensors")
  local model = redco.models.from_pretrained(folder)
  expect_close(model(model.params, { input_ids = ids }), source(source.params, { input_ids = ids }),
    0, 0)
end)

test("a head that is not tied to the embedding, and the one of DeBERTa's authors", function()
  for model_type, name in pairs { bert = "cls.predictions.decoder.weight",
    ["deberta-v2"] = "cls.predictions.decoder.weight", distilbert = "vocab_projector.weight",
    electra = "generator_lm_head.weight", modernbert = "decoder.weight",
    roberta = "lm_head.decoder.weight" } do
    local tied, model = new(model_type), new(model_type, nil, { tie_word_embeddings = false })
    expect_equal(tied.params[name], nil)
    expect_equal(model.params[name]:size(0), model.config.vocab_size)
    local before = model(model.params, { input_ids = ids })
    redco.torch.no_grad(function() model.params[name]:mul_(2) end)
    assert(not torch.equal(model(model.params, { input_ids = ids }), before), model_type)
  end
  local model = new("deberta-v2", nil, { legacy = false })
  assert(model.params["lm_predictions.lm_head.dense.weight"])
  expect_equal(model.params["cls.predictions.transform.dense.weight"], nil)
end)

test("DeBERTa's convolution does not see padding", function()
  local model = new("deberta-v2", "token_classification", { conv_kernel_size = 3 })
  local padding = torch.tensor { { 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 1 } }
  local padded = model(model.params, { input_ids = ids, attention_mask = padding })
  local alone = model(model.params, { input_ids = ids:narrow(0, 0, 1):narrow(1, 0, 3) })
  expect_close(padded:narrow(0, 0, 1):narrow(1, 0, 3), alone, 1e-4, 1e-5)
end)

test("what is not supported is refused by name", function()
  for key, value in pairs { is_decoder = true, add_cross_attention = true,
    position_embedding_type = "relative_key" } do
    expect_error(function() new("bert", nil, { [key] = value }) end, "encoders_spec.lua:",
      "bert: " .. key, tostring(value))
  end
  expect_error(function() new("distilbert", nil, { sinusoidal_pos_embds = true }) end,
    "sinusoidal_pos_embds")
  for key, value in pairs { conv_kernel_size = 2, conv_groups = 3, conv_act = 1 } do
    local changes = { conv_kernel_size = 3, [key] = value }
    expect_error(function() new("deberta-v2", nil, changes) end, "deberta-v2", key)
  end
  expect_error(function() new("deberta-v2", nil, { legacy = false, embedding_size = 4 }) end,
    "embedding_size (4)", "legacy")
  expect_error(function() new("roberta", nil, { pad_token_id = false }) end, "pad_token_id")
  expect_error(function() new("bert", nil, { hidden_sizes = 8 }) end, "hidden_sizes",
    "did you mean 'hidden_size'")
  expect_error(function() new("bert", "causal_lm") end, "unknown task 'causal_lm'", "masked_lm")
  local model = new "distilbert"
  expect_error(function() model(model.params, { input_ids = ids, token_type_ids = ids }) end,
    "distilbert", "token_type_ids")
  model = new("roberta", nil, { max_position_embeddings = 6 })
  expect_error(function() model(model.params, { input_ids = ids }) end, "5 tokens", "4 positions")
  expect_error(function() model.generate(model.params, { input_ids = ids }) end, "no text")
end)

test("a choice for each row", function()
  for _, model_type in ipairs { "bert", "electra", "modernbert" } do
    local model = new(model_type, "multiple_choice")
    local choices = torch.stack({ ids, ids:flip { 1 } }, 1)
    local logits = model(model.params, { input_ids = choices })
    expect_equal(table.concat(logits.shape, " "), "2 2")
    local first = model(model.params, { input_ids = ids:unsqueeze(1) })
    expect_close(logits:narrow(1, 0, 1), first, 1e-5, 1e-6)
    expect_error(function() model(model.params, { input_ids = ids }) end, "choices")
  end
end)

test("ModernBERT's choices read the first token that is no padding", function()
  local model = new("modernbert", "multiple_choice")
  local padded = torch.cat({ torch.zeros_like(ids:narrow(1, 0, 2)), ids }, 1)
  local seen = torch.cat({ torch.zeros { ids:size(0), 2 }, torch.ones(ids.shape) }, 1):long()
  -- Positions count padding.
  local places = torch.arange(2, 2 + ids:size(1)):unsqueeze(0)
  expect_close(model(model.params, { input_ids = padded:unsqueeze(1),
    attention_mask = seen:unsqueeze(1) }), model(model.params, { input_ids = ids:unsqueeze(1),
    position_ids = places }), 1e-4, 1e-5)
end)

test("ModernBERT reads the keys of transformers 5", function()
  local model = new("modernbert", nil, { num_hidden_layers = 3, layer_types = { "full_attention",
    "sliding_attention", "full_attention" }, rope_parameters = {
    full_attention = { rope_type = "default", rope_theta = 777 },
    sliding_attention = { rope_type = "default", rope_theta = 55 } } })
  expect_equal(model.config.global_attn_every_n_layers, 2)
  expect_equal(model.config.global_rope_theta, 777)
  expect_equal(model.config.local_rope_theta, 55)
end)

-- Two sequences in the first row, three and padding in the second; then the row, the first token
-- and the length of each.
local packed = {
  input_ids = torch.tensor { { 3, 4, 5, 6, 7, 8, 9 }, { 10, 3, 4, 5, 2, 6, 0 } },
  position_ids = torch.tensor { { 0, 1, 2, 3, 0, 1, 2 }, { 0, 1, 0, 1, 2, 0, 0 } },
  segment_ids = torch.tensor { { 1, 1, 1, 1, 2, 2, 2 }, { 1, 1, 2, 2, 2, 3, 0 } },
}
local places = { { 0, 0, 4 }, { 0, 4, 3 }, { 1, 0, 2 }, { 1, 2, 3 }, { 1, 5, 1 } }

local function expect_each_alone(model, inputs, places_of)
  local states = model(model.params, inputs)
  for _, place in ipairs(places_of or places) do
    local row, first, length = unpack(place)
    local alone = inputs.input_ids:narrow(0, row, 1):narrow(1, first, length)
    expect_close(states:narrow(0, row, 1):narrow(1, first, length),
      model(model.params, { input_ids = alone }), 1e-5, 1e-5)
  end
end

test("each sequence of a row is as it is alone", function()
  for _, model_type in ipairs(model_types) do
    for _, task in ipairs { "features", "masked_lm", "token_classification" } do
      local model = new(model_type, task, { num_hidden_layers = 2, initializer_range = 0.5,
        relative_attention = model_type == "deberta-v2" or nil,
        pos_att_type = model_type == "deberta-v2" and { "c2p", "p2c" } or nil,
        local_attention = model_type == "modernbert" and 4 or nil })
      expect_each_alone(model, packed)
      local inputs = { attention_mask = packed.segment_ids:ne(0):long() }
      for name, tensor in pairs(packed) do inputs[name] = tensor end
      expect_each_alone(model, inputs)
    end
  end
end)

test("RoBERTa's positions count in each sequence, without padding tokens inside it", function()
  local model = new("roberta", "features", { initializer_range = 0.5 })
  local inputs = { input_ids = torch.tensor { { 3, 1, 4, 5, 1, 6 } },
    position_ids = torch.tensor { { 0, 1, 2, 0, 1, 2 } },
    segment_ids = torch.tensor { { 1, 1, 1, 2, 2, 2 } } }
  expect_each_alone(model, inputs, { { 0, 0, 3 }, { 0, 3, 3 } })
end)

test("rows of several sequences are refused where they would be mixed", function()
  local model = new("deberta-v2", "features", { conv_kernel_size = 3 })
  expect_error(function() model(model.params, packed) end, "segment_ids", "conv_kernel_size")
  for _, task in ipairs { "sequence_classification", "multiple_choice", "question_answering" } do
    model = new("bert", task)
    expect_error(function() model(model.params, packed) end, "bert", "inputs.segment_ids")
  end
  model = new("bert", "features")
  expect_error(function() model(model.params, packed, { pooling = "mean" }) end, "segment_ids")
  expect_error(function()
    model(model.params, { input_ids = ids, segment_ids = ids })
  end, "position_ids are missing")
end)

test("without a head a call returns hidden states, or one vector for each text", function()
  local left = torch.tensor { { 0, 0, 1, 1, 1 }, { 1, 1, 1, 1, 1 } }
  for _, model_type in ipairs(model_types) do
    local model = new(model_type, "features")
    for _, seen in ipairs { mask, left } do
      local inputs = { input_ids = ids, attention_mask = seen }
      local states = model.hidden_states(model.params, inputs)
      expect_close(model(model.params, inputs), states, 0, 0)
      local first, last = seen[0]:argmax(0):item(), 4 - seen[0]:flip(0):argmax(0):item()
      local function pooled(kind)
        return model(model.params, inputs, { pooling = kind })
      end
      expect_close(pooled("cls")[0], states[{ 0, first }], 0, 0)
      expect_close(pooled("last")[0], states[{ 0, last }], 0, 0)
      expect_close(pooled("mean")[0], states[0]:narrow(0, first, 3):mean { 0 }, 1e-5, 1e-6)
      expect_close(pooled("mean")[1], states[1]:mean { 0 }, 1e-5, 1e-6)
      local own = states[0]:narrow(0, first, 3)
      expect_close(pooled("max")[0], own:amax { 0 }, 0, 0)
      expect_close(pooled("mean_sqrt_len_tokens")[0], own:sum { 0 } / 3 ^ 0.5, 1e-5, 1e-6)
      expect_close(pooled("weightedmean")[0], (own[0] + own[1] * 2 + own[2] * 3) / 6, 1e-5, 1e-6)
    end
    expect_close(model(model.params, { input_ids = ids }, { pooling = "last" }),
      model(model.params, { input_ids = ids }):select(1, 4), 0, 0)
    expect_error(function() model(model.params, { input_ids = ids }, { pooling = "median" }) end,
      "pooling = median", "none, cls, last, max, mean")
    expect_error(function() model.loss(model.params, { input_ids = ids }) end, "no loss")
  end
  local bert = new("bert", "features")
  local states = bert(bert.params, { input_ids = ids })
  local dense = redco.nn.linear({ weight = bert.params["pooler.dense.weight"],
    bias = bert.params["pooler.dense.bias"] }, states:select(1, 0))
  expect_close(bert(bert.params, { input_ids = ids }, { pooling = "pooler" }), dense:tanh(),
    1e-6, 1e-7)
end)

test("the folder of a sentence encoder says which vectors a call returns", function()
  local dir, saved = testing.folder() .. "/sentences", testing.folder() .. "/sentences_again"
  local inputs = { input_ids = ids, attention_mask = mask }
  new("bert", "features").save_pretrained(dir)
  local function opened(config, modules)
    assert(os.execute("mkdir -p " .. dir .. "/1_Pooling") == 0)
    testing.write(dir .. "/1_Pooling/config.json", config)
    os.remove(dir .. "/modules.json")
    if modules then testing.write(dir .. "/modules.json", modules) end
    local model = redco.models.from_pretrained(dir, { task = "features" })
    local function pooled(kind) return model(model.params, inputs, { pooling = kind }) end
    return model(model.params, inputs), pooled, model
  end
  local function modules(last)
    local listed = '{"path": "", "type": "sentence_transformers.models.Transformer"},'
      .. '{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}'
    if last then
      listed = listed .. (',{"path": "2_%s", "type": "sentence_transformers.models.%s"}'):format(
        last, last)
    end
    return "[" .. listed .. "]"
  end
  local got, pooled = opened '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
  expect_close(got, pooled "cls", 0, 0)
  got, pooled = opened('{"word_embedding_dimension": 8}', modules())
  expect_close(got, pooled "mean", 0, 0)
  got, pooled = opened(
    '{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}', modules())
  expect_close(got, torch.cat({ pooled "max", pooled "mean" }, -1), 0, 0)
  local model
  got, pooled, model = opened('{"pooling_mode": "lasttoken"}', modules "Normalize")
  expect_close(got, pooled("last") / pooled("last"):norm(2, { 1 }, true), 1e-6, 1e-7)
  expect_close(pooled "none", model.hidden_states(model.params, inputs), 0, 0)
  model.save_pretrained(saved)
  local again = redco.models.from_pretrained(saved, { task = "features" })
  expect_close(again(again.params, inputs), got, 0, 0)
  expect_error(function() opened('{"pooling_mode": "median"}') end, "1_Pooling/config.json",
    "pooling_mode 'median'")
  expect_error(function()
    opened("{}", (modules():gsub("1_Pooling", "../Pooling")))
  end, "modules.json", "../Pooling")
end)

test("a mean over many tokens is exact in half precision", function()
  local pooling = require "redco.models.tasks.pooling"
  local x, many = torch.ones({ 1, 515, 1 }, { dtype = "bfloat16" }), torch.ones { 1, 515 }
  many:narrow(1, 0, 2):fill_(0)
  expect_equal(pooling.mean(x, many):item(), 1)
  expect_equal(pooling.mean(x, many * 0):item(), 0)
end)

test("an encoder that was saved without its head opens without one", function()
  for _, model_type in ipairs(model_types) do
    local folder = testing.folder() .. "/headless_" .. model_type
    local model = new(model_type, "features")
    model.save_pretrained(folder)
    local again = redco.models.from_pretrained(folder, { generator = torch.Generator(7) })
    expect_equal(again.config.architectures[1], model.config.architectures[1])
    assert(again.config.architectures[1]:find "Model$")
    for name, tensor in pairs(model.params) do
      assert(torch.equal(again.params[name], tensor), name)
    end
    for name in pairs(again.params) do assert(model.params[name], name) end
    local states = model.hidden_states(model.params, { input_ids = ids })
    -- All tasks have the same encoder.
    for task in pairs(again.family.tasks) do
      if task ~= "multiple_choice" then
        local headed = redco.models.from_pretrained(folder, { task = task,
          generator = torch.Generator(2) })
        expect_close(headed.hidden_states(headed.params, { input_ids = ids }), states, 0, 0)
        headed.save_pretrained(folder .. task)
        local plain = redco.models.from_pretrained(folder .. task, { task = "features",
          generator = torch.Generator(3) })
        expect_close(plain(plain.params, { input_ids = ids }), states, 0, 0)
      end
    end
  end
end)

test("inputs that a model does not read are refused with the nearest name", function()
  local model = new "bert"
  for given, near in pairs { attention_maks = "attention_mask", token_type_id = "token_type_ids",
    positions_ids = "position_ids", label = "labels" } do
    local inputs = { input_ids = ids, [given] = mask, labels = ids }
    for _, f in ipairs { model, model.loss, model.hidden_states,
      function(p, batch) return model.loss_fn(nil, nil, p, batch, false) end } do
      expect_error(function() f(model.params, inputs) end, "encoders_spec.lua:",
        "inputs." .. given, ("did you mean '%s'"):format(near), "input_ids, attention_mask")
    end
  end
end)

test("masks of another shape are refused", function()
  local model = new "bert"
  for _, wrong in ipairs { mask:narrow(1, 0, 3), mask:narrow(0, 0, 1), mask:view { 2, 1, 1, 5 },
    torch.ones { 2, 5, 5 } } do
    expect_error(function()
      model(model.params, { input_ids = ids, attention_mask = wrong })
    end, "bert: inputs.attention_mask is [" .. table.concat(wrong.shape, ", ") .. "]",
      "expected [2, 5]")
  end
  expect_error(function()
    model(model.params, { input_ids = ids, token_type_ids = ids:narrow(1, 0, 2) })
  end, "token_type_ids is [2, 2], expected [2, 5]")
end)

local esm = { position_embedding_type = "rotary", token_dropout = true, mask_token_id = 4 }

test("ESM counts masked tokens by sequence", function()
  local model = new("esm", nil, esm)
  local function logits(list, segments, positions)
    return model(model.params, { input_ids = torch.tensor { list },
      segment_ids = segments and torch.tensor { segments },
      position_ids = positions and torch.tensor { positions } })
  end
  local both = logits({ 3, 4, 5, 6, 4, 4, 7 }, { 1, 1, 1, 2, 2, 2, 2 }, { 0, 1, 2, 0, 1, 2, 3 })
  expect_close(both:narrow(1, 0, 3), logits { 3, 4, 5 }, 1e-5, 1e-6)
  expect_close(both:narrow(1, 3, 4), logits { 6, 4, 4, 7 }, 1e-5, 1e-6)
end)

test("ESM turns positions by the frequencies of its file", function()
  local dir, name = testing.folder() .. "/esm", "esm.rotary_embeddings.inv_freq"
  local model = new("esm", nil, esm)
  model.save_pretrained(dir)
  local inputs = { input_ids = ids }
  local expected = model(model.params, inputs)
  expect_close(redco.models.from_pretrained(dir)(model.params, inputs), expected, 0, 0)
  local weights = torch.load(dir .. "/model.safetensors")
  weights[name] = torch.tensor { 1, 0.5 }
  os.remove(dir .. "/model.safetensors")
  torch.save(weights, dir .. "/model.safetensors")
  local other = redco.models.from_pretrained(dir)
  local found = other(other.params, inputs)
  assert((found - expected):abs():max():item() > 1e-6)
  other.save_pretrained(dir .. "/again")
  local again = redco.models.from_pretrained(dir .. "/again", { dtype = "float32" })
  expect_close(again(again.params, inputs), found, 0, 0)
end)

testing.finish()
