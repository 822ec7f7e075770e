-- The families that have no reference case, as rows of shared implementations: tiny new models,
-- laid out by a Trainer over processes that share the model or the parameters. Loss, gradients and
-- generated tokens are those of tensors that every process has whole, and nothing is gathered for
-- want of a rule.
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local torch = redco.torch
local vocab_size = 33

local llama = { hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, initializer_range = 0.2, pad_token_id = 0 }
local bart = { d_model = 32, encoder_layers = 1, decoder_layers = 1, encoder_attention_heads = 4,
  decoder_attention_heads = 4, encoder_ffn_dim = 48, decoder_ffn_dim = 48, pad_token_id = 1,
  max_position_embeddings = 32, init_std = 0.2, decoder_start_token_id = 2 }
local t5 = { d_model = 32, d_kv = 8, d_ff = 48, num_layers = 2, num_heads = 4 }
local falcon = { hidden_size = 32, num_attention_heads = 4, num_hidden_layers = 2,
  initializer_range = 0.2 }

local bert = { hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
  num_attention_heads = 4, max_position_embeddings = 16, initializer_range = 0.2,
  hidden_dropout_prob = 0, attention_probs_dropout_prob = 0 }
local distilbert = { dim = 32, hidden_dim = 48, n_layers = 2, n_heads = 4, dropout = 0,
  max_position_embeddings = 16, initializer_range = 0.2, attention_dropout = 0,
  seq_classif_dropout = 0 }
local deberta = { relative_attention = true, pos_att_type = { "c2p", "p2c" }, position_buckets = 4,
  norm_rel_ebd = "layer_norm" }

-- {model_type, what is common, more, task}; with pooling, or rows of several sequences
local rows = {
  { "mistral", llama, { sliding_window = 3 } },
  { "granite", llama, { residual_multiplier = 0.5, logits_scaling = 2 } },
  { "smollm3", llama, { no_rope_layers = { 1, 0 } } },
  { "olmo2", llama, {} },
  { "starcoder2", llama, { sliding_window = 3 } },
  { "qwen2", llama, { num_labels = 4 }, "sequence_classification" },
  { "llama", llama, { num_labels = 4, classifier_dropout = 0 }, "token_classification" },
  { "mixtral", llama, { num_local_experts = 4, output_router_logits = true,
    router_aux_loss_coef = 0.5 } },
  { "qwen3_moe", llama, { num_experts = 6, num_experts_per_tok = 2, moe_intermediate_size = 16,
    decoder_sparse_step = 2, output_router_logits = true, router_aux_loss_coef = 0.5 } },
  { "olmoe", llama, { num_experts = 5, num_experts_per_tok = 2, clip_qkv = 1 } },
  { "deepseek_v3", llama, { num_key_value_heads = 4, q_lora_rank = 12, kv_lora_rank = 8,
    qk_rope_head_dim = 4, qk_nope_head_dim = 6, v_head_dim = 8, n_routed_experts = 6, n_group = 3,
    topk_group = 2, num_experts_per_tok = 2, moe_intermediate_size = 16,
    first_k_dense_replace = 1 } },
  { "deepseek_v3", llama, { num_key_value_heads = 4, q_lora_rank = false, kv_lora_rank = 7,
    qk_rope_head_dim = 4, qk_nope_head_dim = 5, v_head_dim = 3, n_routed_experts = 5, n_group = 1,
    topk_group = 1, num_experts_per_tok = 2, moe_intermediate_size = 16,
    first_k_dense_replace = 0 } },
  { "phi3", llama, {} },
  { "phi3", llama, { num_key_value_heads = 1 } },
  { "gpt_neox", { hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
    num_attention_heads = 4, initializer_range = 0.2 }, {} },
  { "falcon", falcon, { new_decoder_architecture = true, num_kv_heads = 2 } },
  { "falcon", falcon, { multi_query = false, alibi = true } },
  { "falcon", falcon, { bias = true } },
  { "falcon", falcon, { alibi = true } },
  { "bloom", { hidden_size = 32, n_head = 4, n_layer = 2, initializer_range = 0.2 }, {} },
  { "mt5", t5, {} },
  { "umt5", t5, {} },
  { "mbart", bart, {} },
  { "marian", bart, {} },
  { "pegasus", bart, {} },
  { "xlm-roberta", bert, {}, "masked_lm" },
  { "bert", bert, { num_labels = 4 }, "token_classification" },
  { "electra", bert, { embedding_size = 16 }, "masked_lm" },
  { "electra", bert, {}, "replaced_token_detection" },
  { "distilbert", distilbert, {}, "masked_lm" },
  { "distilbert", distilbert, { num_labels = 4 }, "sequence_classification" },
  { "deberta-v2", bert, deberta, "masked_lm" },
  { "deberta-v2", bert, { num_labels = 4, relative_attention = true, pos_att_type = "c2p",
    share_att_key = true }, "sequence_classification" },
  { "llama", llama, {}, is_packed = true },
  { "mistral", llama, { sliding_window = 2 }, is_packed = true },
  { "bert", bert, {}, "masked_lm", is_packed = true },
  { "roberta", bert, {}, "masked_lm", is_packed = true },
  { "deberta-v2", bert, deberta, "masked_lm", is_packed = true },
  { "bert", bert, {}, "features", pooling = "mean" },
  { "roberta", bert, {}, "features", pooling = "pooler" },
  { "deberta-v2", bert, deberta, "features", pooling = "cls" },
  { "qwen2", llama, {}, "features", pooling = "last" },
  { "mt5", t5, {}, "features", pooling = "mean" },
}

local function config_of(row)
  local config = { model_type = row[1], vocab_size = vocab_size }
  for _, source in ipairs { row[2], row[3] } do
    for key, value in pairs(source) do config[key] = value end
  end
  return config
end

local ids = torch.tensor { { 5, 4, 7, 6, 32, 9 }, { 3, 6, 6, 3, 4, 20 } }

local function batch_of(row)
  local task = row[4]
  local labels = torch.tensor { { 7, 8, 9, 10, 11, -100 }, { 6, 6, 3, 4, 20, 8 } }
  if task == "sequence_classification" then labels = torch.tensor { 1, 3 } end
  if task == "token_classification" then labels = labels:clamp(-100, 3) end
  if task == "replaced_token_detection" then labels = labels:remainder(2) end
  local batch = { input_ids = ids, labels = labels }
  if row.is_packed then
    batch.position_ids = torch.tensor { { 0, 1, 2, 0, 1, 2 }, { 0, 0, 1, 2, 3, 4 } }
    batch.segment_ids = torch.tensor { { 1, 1, 1, 2, 2, 2 }, { 1, 2, 2, 2, 2, 2 } }
  elseif task == "features" then
    batch.attention_mask = torch.tensor { { 0, 0, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 0 } }
  end
  return batch
end

local function examples_of(batch)
  return { redco.tree.map(function(t) return t[0] end, batch),
    redco.tree.map(function(t) return t[1] end, batch) }
end

local function collate(examples)
  return redco.tree.map(function(...) return torch.stack { ... } end, unpack(examples))
end

local function whole_copy(model)
  local whole = {}
  model.family.add_parameters(model.config, function(name)
    whole[name] = model.params[name]:full():clone()
  end)
  return whole
end

-- most: the part of the parameters that each process may hold.
local function check(row, deployer, most)
  local model = redco.models.from_config(config_of(row),
    { generator = torch.Generator(3), task = row[4] })
  local whole, batch = whole_copy(model), batch_of(row)
  local function loss_of(params, given)
    if not row.pooling then return (model.loss(params, given)) end
    return model(params, given, { pooling = row.pooling }):pow(3):mean()
  end
  local expected_loss, expected = redco.value_and_grad(function(params)
    return loss_of(params, batch)
  end)(whole)
  local tokens = not row[4] and model.generate(whole, { input_ids = ids }, { max_new_tokens = 4 })
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params, collate_fn = collate,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
    loss_fn = function(_, _, params, given) return loss_of(params, given) end,
    train_step_fn = function(_, _, given, defaults)
      local loss, gradients = defaults.value_and_grad(function(params)
        return loss_of(params, given)
      end)
      testing.expect_close(loss:full(), expected_loss, 1e-5, 1e-5)
      model.family.add_parameters(model.config, function(name)
        if (model.family.buffers or {})[name] then return end
        if not gradients[name] then  -- it is not trained
          return testing.expect_equal(expected[name] and expected[name]:norm():item() or 0, 0)
        end
        local size = math.max(expected[name]:norm():item(), 1e-2)
        local ok, message = pcall(testing.expect_close, gradients[name]:full(), expected[name],
          1e-3, 1e-4 * size)
        if not ok then error(name .. ": " .. message) end
      end)
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end,
  }
  trainer:train {
    examples = examples_of(batch), per_device_batch_size = 2 / deployer.mesh.dp / deployer.mesh.ep,
  }
  local memory = trainer:memory()
  assert(memory.params.here < most * memory.params.whole,
    ("%d of %d bytes are here"):format(memory.params.here, memory.params.whole))
  if not tokens then return end
  local predictor = redco.Predictor {
    deployer = deployer, collate_fn = collate,
    pred_fn = function(_, params, given)
      return (model.generate(params, given, { max_new_tokens = 4 }))
    end,
  }
  local preds = predictor:predict {
    examples = examples_of { input_ids = ids }, params = whole,
    per_device_batch_size = 2 / deployer.mesh.dp / deployer.mesh.ep,
  }
  for i = 1, 2 do
    testing.expect_equal(table.concat(preds[i]:tolist(), " "),
      table.concat(tokens[i - 1]:tolist(), " "))
  end
end

local function has_experts(row)
  return row[3].num_local_experts or row[3].num_experts or row[3].n_routed_experts
end

for _, options in ipairs { { n_model_shards = 2 }, { zero = 3 }, { n_context_shards = 2, zero = 3 },
  { n_expert_shards = 2 }, { n_pipeline_stages = 2 } } do
  local words = {}
  for key, value in pairs(options) do words[#words + 1] = key .. " = " .. value end
  table.sort(words)
  options.seed, options.zero_min_size, options.verbose = 1, 64, false
  local deployer = redco.Deployer(options)
  for i, row in ipairs(rows) do
    local is_chosen = options.n_model_shards or testing.is_chosen(i, 3)
    if options.n_expert_shards then is_chosen = has_experts(row) end
    if is_chosen then
      local name = row[1] .. (row[4] and " for " .. row[4] or "")
      testing.test(("%d: %s, %s"):format(i, name, table.concat(words, ", ")), function()
        local most = options.n_expert_shards and 0.9 or options.n_pipeline_stages and 1 or 0.6
        check(row, deployer, most)
        for operator, calls in pairs(traffic.gathered_without_rule()) do
          error(("%s was gathered %d times"):format(operator, calls))
        end
      end)
    end
  end
end

testing.finish()
