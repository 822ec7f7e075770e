-- Adapters on every family of models, on 2x2 processes with ZeRO 3: one step of training, of a new
-- model and of one that stays in its mapped files (low_memory), has the loss, the gradients and the
-- new adapters of one process. Without REDCO_TEST_FULL=1 only of those that families.lua
-- lacks, one of a kind. A second argument is the only family.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local folder = assert(arg[1], "expected a folder to write to") .. "/every_family"
local deployer = redco.Deployer {
  seed = 1, n_model_shards = 2, zero = 3, zero_min_size = 16, verbose = false,
}

local function merged(...)
  local result = {}
  for _, source in ipairs { ... } do
    for key, value in pairs(source) do result[key] = value end
  end
  return result
end

-- Sizes, by the names that families have for them.
local usual = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4 }
local decoder = merged(usual, { intermediate_size = 24, max_position_embeddings = 32 })
local grouped = merged(decoder, { num_key_value_heads = 2 })
local with_head_size = merged(grouped, { head_dim = 8 })
local encoder = merged(decoder, { hidden_dropout_prob = 0, attention_probs_dropout_prob = 0 })
local gpt = { n_embd = 16, n_layer = 2, n_head = 4, n_positions = 32, resid_pdrop = 0,
  embd_pdrop = 0, attn_pdrop = 0 }
local bart = { d_model = 16, encoder_layers = 1, decoder_layers = 1, encoder_attention_heads = 4,
  decoder_attention_heads = 4, encoder_ffn_dim = 24, decoder_ffn_dim = 24, dropout = 0,
  max_position_embeddings = 32, decoder_start_token_id = 2, pad_token_id = 1, eos_token_id = 2 }
local t5 = { d_model = 16, d_kv = 4, d_ff = 24, num_layers = 1, num_heads = 4, dropout_rate = 0,
  decoder_start_token_id = 0 }
local vit = merged(usual, { model_type = "vit", intermediate_size = 24, hidden_dropout_prob = 0,
  attention_probs_dropout_prob = 0, image_size = 8, patch_size = 4, num_channels = 3 })

local configs = {
  bart = bart,
  bert = encoder,
  bloom = { hidden_size = 16, n_layer = 2, n_head = 4, hidden_dropout = 0, attention_dropout = 0 },
  deepseek_v3 = merged(decoder, { num_key_value_heads = 4, q_lora_rank = 8, kv_lora_rank = 6,
    qk_rope_head_dim = 4, qk_nope_head_dim = 4, v_head_dim = 4, n_routed_experts = 4, n_group = 1,
    topk_group = 1, num_experts_per_tok = 2, moe_intermediate_size = 8,
    first_k_dense_replace = 1 }),
  ["deberta-v2"] = merged(encoder, { relative_attention = true, pos_att_type = { "c2p", "p2c" },
    conv_kernel_size = 3, position_buckets = 4 }),
  distilbert = { dim = 16, n_layers = 2, n_heads = 4, hidden_dim = 24, dropout = 0,
    attention_dropout = 0, max_position_embeddings = 32 },
  electra = merged(encoder, { embedding_size = 8 }),
  falcon = usual,
  gemma2 = with_head_size,
  gemma3_text = with_head_size,
  gpt2 = gpt,
  gpt_neox = merged(decoder, { rotary_pct = 0.5, num_attention_heads = 2 }),
  gptj = merged(gpt, { rotary_dim = 4 }),
  granite = grouped,
  llama = grouped,
  marian = bart,
  mbart = bart,
  mistral = grouped,
  mixtral = merged(grouped, { num_experts_per_tok = 2, num_local_experts = 4 }),
  modernbert = merged(usual, { intermediate_size = 24, pad_token_id = 0, bos_token_id = 1,
    eos_token_id = 2, cls_token_id = 1, sep_token_id = 2, global_attn_every_n_layers = 2,
    local_attention = 4 }),
  mt5 = t5,
  olmo2 = grouped,
  olmoe = merged(grouped, { num_experts = 4, num_experts_per_tok = 2 }),
  opt = merged(usual, { ffn_dim = 24, max_position_embeddings = 32, word_embed_proj_dim = 16,
    dropout = 0 }),
  pegasus = bart,
  phi3 = merged(grouped, { resid_pdrop = 0, pad_token_id = 0 }),
  qwen2 = grouped,
  qwen3 = with_head_size,
  qwen3_moe = merged(with_head_size, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8 }),
  roberta = encoder,
  smollm3 = merged(grouped, { pad_token_id = 0 }),
  starcoder2 = merged(grouped, { residual_dropout = 0, embedding_dropout = 0 }),
  t5 = t5,
  umt5 = t5,
  ["vision-encoder-decoder"] = { encoder = vit, decoder = merged(gpt, { model_type = "gpt2",
    vocab_size = 32, add_cross_attention = true, is_decoder = true, bos_token_id = 1,
    eos_token_id = 2 }), decoder_start_token_id = 1, pad_token_id = 0,
    tie_word_embeddings = false },
  vit = vit,
  ["xlm-roberta"] = encoder,
}

-- All processes must go through tables in the same order.
local function sorted_keys(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local names = sorted_keys(configs)
if os.getenv "REDCO_TEST_FULL" == nil then
  names = { "bloom", "deberta-v2", "umt5" }
end
if arg[2] then names = { arg[2] } end

local function new_inputs(name)
  local generator, n = torch.Generator(5), 4
  local function tokens(length)
    return torch.randint(3, 32, { n, length }, { generator = generator })
  end
  local labels = tokens(5)
  if name == "vit" then labels = torch.tensor { 0, 1, 1, 0 } end
  if name == "vit" or name == "vision-encoder-decoder" then
    return { pixel_values = torch.randn({ n, 3, 8, 8 }, { generator = generator }),
      labels = labels }
  end
  return { input_ids = tokens(5), labels = labels }
end

-- The layers of the attention and of the first feed-forward layer, whatever they are called.
local targets = {}
for part in ([[q_proj k_proj v_proj query key value query_key_value c_attn qkv_proj q k v q_lin
    q_b_proj kv_b_proj v_lin Wqkv query_proj value_proj fc1 fc_in wi wi_0 up_proj
    dense_h_to_4h]]):gmatch "%S+" do
  targets[part] = true
end

local function with_adapters(params)
  local found, generator = {}, torch.Generator(7)
  for key in pairs(params) do
    local part = key:match "([^.]+)%.weight$"
    if targets[part] then found[part] = true end
  end
  local result = redco.lora.add(params, { target_modules = sorted_keys(found), r = 4,
    lora_alpha = 8, generator = generator })
  torch.no_grad(function()
    for _, key in ipairs(sorted_keys(result)) do
      if key:find "lora_B" then
        redco.nn.init.normal_(result[key], { std = 0.3, generator = generator })
      end
    end
  end)
  return result
end

local function is_adapter(key) return not redco.lora.is_frozen(key) and key:find "%.lora_[AB]" end

local function whole(params)
  local result = {}
  for _, key in ipairs(sorted_keys(params)) do
    local leaf = params[key]
    result[key] = torch.is_tensor(leaf) and (leaf:is_sharded() and leaf:full() or leaf:clone())
      or leaf
  end
  return result
end

-- The gradients and the new values by plain tensors, one step of SGD.
local function expected_step(model, params, inputs)
  local plain = whole(params)
  local adapters = {}
  for key, leaf in pairs(plain) do
    if is_adapter(key) then adapters[key] = leaf end
  end
  local loss, gradients = redco.value_and_grad(function(given)
    return (model.loss(merged(plain, given), inputs))
  end)(adapters)
  return loss:item(), gradients
end

local function check(name, model, inputs)
  local params = with_adapters(model.params)
  local loss, gradients = expected_step(model, params, inputs)
  local rows = {}
  for i = 0, 3 do
    rows[i + 1] = redco.tree.map(function(tensor) return tensor[i] end, inputs)
  end
  local n_compared = 0
  local trainer = redco.Trainer {
    deployer = deployer, params = params,
    optimizer = redco.lora.freeze_base(redco.optim.sgd { learning_rate = 0.5 }),
    collate_fn = function(examples)
      local batch = {}
      for key in pairs(examples[1]) do
        local tensors = {}
        for i, example in ipairs(examples) do tensors[i] = example[key] end
        batch[key] = torch.stack(tensors)
      end
      return batch
    end,
    loss_fn = function(_, _, given, batch) return (model.loss(given, batch)) end,
    train_step_fn = function(_, _, batch, defaults)
      local here, found = defaults.value_and_grad(function(given)
        return (model.loss(given, batch))
      end)
      testing.expect_close(here:full(), torch.tensor(loss), 1e-4, 1e-5)
      for _, key in ipairs(sorted_keys(found)) do
        local gradient = found[key]
        if torch.is_tensor(gradient) and is_adapter(key) then
          testing.expect_close(gradient:full(), gradients[key], 2e-3, 2e-5)
          n_compared = n_compared + 1
        end
      end
      return { loss = here, norm = defaults.apply_gradients(found) }
    end,
  }
  local before = whole(params)
  trainer:train { examples = rows, per_device_batch_size = 2 }
  for _, key in ipairs(sorted_keys(trainer.params)) do
    local leaf, expected = trainer.params[key], before[key]
    if torch.is_tensor(leaf) then
      if is_adapter(key) then expected = expected - 0.5 * gradients[key] end
      testing.expect_close(leaf:full(), expected, 2e-3, 2e-5)
    end
  end
  assert(n_compared > 1, name .. ": no adapter was trained")
end

for _, name in ipairs(names) do
  local config = merged({ model_type = name, vocab_size = 32 }, configs[name])
  if name == "vit" or name == "vision-encoder-decoder" then config.vocab_size = nil end
  local dir = folder .. "/" .. name
  local inputs = new_inputs(name)
  testing.test(name .. ": adapters on 2x2, zero = 3", function()
    local model = redco.models.from_config(config, { generator = torch.Generator(3) })
    model.save_pretrained(dir)
    check(name, model, inputs)
  end)
  testing.test(name .. ": adapters beside mapped files on 2x2, zero = 3", function()
    local model = redco.models.from_pretrained(dir, { low_memory = true })
    check(name, model, inputs)
  end)
end

testing.finish()
