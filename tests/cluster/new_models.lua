-- New models of every family, large enough that the processes share each embedding: their weights,
-- gradients and generated tokens are those of tensors that every process has whole.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch

local tiny = {
  gpt2 = { n_positions = 16, n_embd = 64, n_layer = 1, n_head = 2 },
  gptj = { n_positions = 16, n_embd = 64, n_layer = 1, n_head = 2, rotary_dim = 8 },
  llama = { hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1,
    num_attention_heads = 2 },
  opt = { max_position_embeddings = 16, hidden_size = 64, ffn_dim = 96, num_hidden_layers = 1,
    num_attention_heads = 2 },
  bart = { max_position_embeddings = 16, d_model = 64, encoder_layers = 1, decoder_layers = 1,
    encoder_attention_heads = 2, decoder_attention_heads = 2, encoder_ffn_dim = 96,
    decoder_ffn_dim = 96, decoder_start_token_id = 2 },
  t5 = { d_model = 64, d_kv = 16, d_ff = 96, num_layers = 1, num_heads = 2 },
}

-- The embeddings whose padding row gets no gradient from the lookup.
local padded = {
  bart = "model.shared.weight",
  llama = "model.embed_tokens.weight",
  opt = "model.decoder.embed_tokens.weight",
}

local vocab_size = 129

local function config_of(model_type, changes)
  local config = { model_type = model_type, vocab_size = vocab_size }
  for _, source in ipairs { tiny[model_type], changes } do
    for key, value in pairs(source) do config[key] = value end
  end
  return config
end

local function expect_weights(model)
  local generator = torch.Generator(3)
  local whole = {}
  model.family.add_parameters(model.config, function(name, sizes, init)
    whole[name] = init(torch.empty(sizes), generator)
  end)
  local n_shared = 0
  for name, expected in pairs(whole) do
    if model.params[name]:is_sharded() then n_shared = n_shared + 1 end
  end
  assert(n_shared > 0, "no parameter is shared")
  model.family.add_parameters(model.config, function(name)
    testing.expect_close(model.params[name]:full(), whole[name], 0, 0)
  end)
  return whole
end

local function gradients_of(model, params, inputs)
  local leaves = {}
  for name, tensor in pairs(params) do leaves[name] = tensor end
  local _, gradients = redco.value_and_grad(function(given)
    return (model.loss(given, inputs))
  end)(leaves)
  return gradients
end

local function check(model_type, changes, padding)
  local model = redco.models.from_config(config_of(model_type, changes),
    { generator = torch.Generator(3) })
  local whole = expect_weights(model)
  local ids = torch.tensor { { 5, padding, 7, padding, 128, 9 }, { padding, 6, 6, 3, 4, 70 } }
  local labels = torch.tensor { { 7, 8, 9, 10, padding, -100 }, { 6, 6, 3, 4, 70, 80 } }
  local inputs = { input_ids = ids, labels = labels }
  local expected = gradients_of(model, whole, inputs)
  local actual = gradients_of(model, model.params, inputs)
  model.family.add_parameters(model.config, function(name)
    testing.expect_close(actual[name]:full(), expected[name], 1e-4, 1e-5)
  end)
  local name = padded[model_type]
  if name and not model.config.tie_word_embeddings and model_type ~= "bart" then
    local row = actual[name]:full()[padding]
    testing.expect_equal(row:abs():max():item(), 0)
    testing.expect_equal(model.params[name]:full()[padding]:abs():max():item(), 0)
  end
end

-- Each option of generation that changes scores, in one of these calls.
local generations = {
  { sequence_bias = { { { 5 }, 3 }, { { 7, 6 }, 4 } }, repetition_penalty = 1.3,
    no_repeat_ngram_size = 2, bad_words_ids = { { 9 }, { 4, 3 } }, min_new_tokens = 3 },
  { encoder_repetition_penalty = 1.5, encoder_no_repeat_ngram_size = 2,
    suppress_tokens = { 6, 128 }, begin_suppress_tokens = { 70 }, forced_eos_token_id = { 8, 9 },
    remove_invalid_values = true },
  { exponential_decay_length_penalty = { 1, 1.1 }, renormalize_logits = true, num_beams = 3,
    num_return_sequences = 2, forced_bos_token_id = 12 },
  { do_sample = true, seed = 5, temperature = 0.8, top_k = 20, top_p = 0.9, min_p = 0.01 },
  { do_sample = true, seed = 6, typical_p = 0.7, epsilon_cutoff = 0.002, eta_cutoff = 0.01 },
}

local function check_generation(model_type)
  local changes = model_type == "gpt2" and { initializer_range = 0.5 }
    or { decoder_start_token_id = 0 }
  local model = redco.models.from_config(config_of(model_type, changes),
    { generator = torch.Generator(3) })
  local whole = {}
  for name, tensor in pairs(model.params) do whole[name] = tensor end
  model.family.add_parameters(model.config, function(name)
    whole[name] = model.params[name]:full()
  end)
  local inputs = { input_ids = torch.tensor { { 5, 4, 7, 6, 128, 9 }, { 3, 6, 6, 3, 4, 70 } } }
  for _, options in ipairs(generations) do
    options.max_new_tokens, options.eos_token_id, options.pad_token_id = 6, 11, 0
    local expected = model.generate(whole, inputs, options)
    local actual = model.generate(model.params, inputs, options)
    testing.expect_close(actual:full(), expected:full(), 0, 0)
  end
end

-- Other numbers of rows: as of tensors that every process has whole.
local function check_resize(model_type, changes)
  local function new()
    return redco.models.from_config(config_of(model_type, changes),
      { generator = torch.Generator(3) })
  end
  local model, other, whole = new(), new(), {}
  for name, tensor in pairs(model.params) do whole[name] = tensor end
  model.family.add_parameters(model.config, function(name)
    whole[name] = model.params[name]:full()
  end)
  local inputs = { input_ids = torch.tensor { { 5, 140, 7 }, { 3, 6, 149 } },
    labels = torch.tensor { { 140, 7, 9 }, { 6, 149, -100 } } }
  for _, n in ipairs { 150, 141, 129, 64 } do
    local options = { mean_resizing = n ~= 141 }
    for _, each in ipairs { { model, model.params }, { other, whole } } do
      options.generator, options.params = torch.Generator(n), each[2]
      each[1].resize_token_embeddings(n, options)
    end
    testing.expect_equal(model.config.vocab_size, n)
    model.family.add_parameters(model.config, function(name, sizes)
      testing.expect_equal(table.concat(model.params[name].shape, " "), table.concat(sizes, " "))
      testing.expect_close(model.params[name]:full(), whole[name]:full(), 0, 1e-6)
    end)
    if n == 150 then
      local expected = gradients_of(model, whole, inputs)
      local actual = gradients_of(model, model.params, inputs)
      model.family.add_parameters(model.config, function(name)
        testing.expect_close(actual[name]:full(), expected[name]:full(), 1e-4, 1e-5)
      end)
    end
  end
end

for _, n_model_shards in ipairs { 1, 2 } do
  local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
  for _, model_type in ipairs { "gpt2", "t5" } do
    testing.test(("%s generates on %dx%d"):format(model_type, deployer.mesh.dp, deployer.mesh.mp),
      function() check_generation(model_type) end)
  end
  for _, model_type in ipairs { "bart", "gptj", "llama" } do
    testing.test(("%s resizes its embeddings on %dx%d"):format(model_type, deployer.mesh.dp,
      deployer.mesh.mp), function()
      check_resize(model_type, model_type == "llama" and { tie_word_embeddings = true } or {})
    end)
  end
  -- In the same order in all processes.
  for _, model_type in ipairs { "bart", "gpt2", "gptj", "llama", "opt", "t5" } do
    for _, pad_token_id in ipairs(padded[model_type] and { 1, vocab_size - 1, -1 } or { 1 }) do
      for _, tied in ipairs { true, false } do
        local changes = { pad_token_id = pad_token_id }
        if model_type ~= "bart" then changes.tie_word_embeddings = tied end
        if model_type == "t5" then changes.pad_token_id, changes.decoder_start_token_id = 0, 0 end
        if tied or model_type ~= "bart" then
          testing.test(("%s, pad_token_id = %d, tied = %s, on %dx%d"):format(model_type,
            pad_token_id, tostring(tied), deployer.mesh.dp, deployer.mesh.mp), function()
            check(model_type, changes, pad_token_id % vocab_size)
          end)
        end
      end
    end
  end
end

testing.finish()
