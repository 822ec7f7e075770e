-- Steps of a model, and what the last one sent; or with --planned a script for `redco-lua plan`.
local native = require "redco.native"
local redco = require "redco"
local traffic = require "traffic"

native.keep_results_of(0)  -- these models are small

local o = redco.options {
  model = "mlp", n_model_shards = 1, zero = 0, accumulate = 1, batch = 2, sequence_parallel = false,
  zero_group = 0, recompute = "none", compute_dtype = "float32", planned = false,
  n_context_shards = 1, n_expert_shards = 1, n_pipeline_stages = 1, n_chunks_per_stage = 1,
}
local torch, nn = redco.torch, redco.nn
local deployer = redco.Deployer {
  seed = 1, n_model_shards = o.n_model_shards, zero = o.zero, zero_min_size = 64,
  n_context_shards = o.n_context_shards, n_expert_shards = o.n_expert_shards,
  n_pipeline_stages = o.n_pipeline_stages, n_chunks_per_stage = o.n_chunks_per_stage,
  sequence_parallel = o.sequence_parallel,
  verbose = false,
  zero_group = o.zero_group > 0 and o.zero_group or nil,
}

local length = 8
local models = {}

function models.mlp()
  local rng = deployer:gen_rng()
  local layers = {
    up = nn.Linear(32, 128, { generator = rng }), down = nn.Linear(128, 32, { generator = rng }),
  }
  return layers, function(params, batch)
    local y = nn.linear(params.down, nn.linear(params.up, batch.x):relu())
    return (y - batch.x):square():mean()
  end
end

local function language_model(config)
  local model = redco.models.from_config(config, { generator = deployer:gen_rng() })
  return model.params, function(params, batch)
    return model.loss(params, { input_ids = batch.input_ids, labels = batch.labels })
  end
end

function models.llama()
  return language_model {
    model_type = "llama", vocab_size = 64, hidden_size = 32, intermediate_size = 64,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    max_position_embeddings = 32,
  }
end

function models.mixtral()
  return language_model {
    model_type = "mixtral", vocab_size = 64, hidden_size = 32, intermediate_size = 64,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    max_position_embeddings = 32, num_local_experts = 4, num_experts_per_tok = 2,
  }
end

function models.gpt2()
  return language_model {
    model_type = "gpt2", vocab_size = 64, n_embd = 32, n_layer = 2, n_head = 4, n_positions = 32,
    resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0,
  }
end

function models.t5()
  return language_model {
    model_type = "t5", vocab_size = 64, d_model = 32, d_ff = 64, d_kv = 8, num_heads = 4,
    num_layers = 2, num_decoder_layers = 2, dropout_rate = 0, pad_token_id = 0,
    decoder_start_token_id = 0,
  }
end

function models.lora()
  local params, loss = models.llama()
  return redco.lora.add(params, { target_modules = { "q_proj", "v_proj" },
    generator = deployer:gen_rng() }), loss, true
end

function models.conv()
  local rng = deployer:gen_rng()
  local layers = {
    first = nn.Conv2d(3, 16, 3, { generator = rng }), norm = nn.GroupNorm(16),
    second = nn.Conv2d(16, 32, 3, { generator = rng }),
    head = nn.Linear(32, 10, { generator = rng }),
  }
  return layers, function(p, batch)
    local x = nn.conv2d(p.first, batch.pixels, { padding = 1 })
    x = nn.group_norm(p.norm, x, { num_groups = 4 }):relu()
    x = torch.max_pool2d(nn.conv2d(p.second, x, { padding = 1 }), { 2, 2 })
    return nn.cross_entropy(nn.linear(p.head, x:mean { 2, 3 }), batch.y)
  end
end

local all_params, loss, is_frozen = models[o.model]()
local optimizer = redco.optim.adamw { learning_rate = 0.01 }
if is_frozen then optimizer = redco.lora.freeze_base(optimizer) end
local trainer = redco.Trainer {
  deployer = deployer, params = all_params, optimizer = optimizer, recompute = o.recompute,
  compute_dtype = o.compute_dtype, accumulate_grad_batches = o.accumulate,
  collate_fn = function(examples)
    local ids = torch.ones({ #examples, length }, { dtype = "int64" })
    return {
      x = torch.ones { #examples, length, 32 }, input_ids = ids, labels = ids,
      attention_mask = o.model ~= "t5" and ids or nil,
      pixels = torch.ones { #examples, 3, 8, 8 },
      y = torch.ones({ #examples }, { dtype = "int64" }),
    }
  end,
  loss_fn = function(_, _, params, batch) return loss(params, batch) end,
}

local n_copies = deployer.mesh.dp * deployer.mesh.dp_replicate * deployer.mesh.ep
local examples = {}
for i = 1, o.batch * o.accumulate * n_copies do examples[i] = i end
if o.planned then
  trainer:fit { train_examples = examples, per_device_batch_size = o.batch, n_epochs = 1 }
end

local function step()
  trainer:train_step { examples = examples, per_device_batch_size = o.batch }
end
step()

-- Returns the messages to other stages, by link.
local function messages()
  local sent = {}
  for _, move in ipairs(redco.sharding_counters().moves) do
    if move.group:find ">" then
      local of_link = sent[move.group] or { count = 0, bytes = 0 }
      of_link.count, of_link.bytes = of_link.count + move.collectives, of_link.bytes + move.bytes
      sent[move.group] = of_link
    end
  end
  return sent
end

local is_first_of_stage = deployer.process_id % (deployer.n_processes / o.n_pipeline_stages) == 0
for _ = 2, 3 do
  local lines = {}
  local before, messages_before = redco.sharding_counters().collectives, messages()
  step()
  local after = redco.sharding_counters().collectives
  for _, group in ipairs { "dp", "ep", "cp", "mp", "dp_replicate", "pp", "world" } do
    for _, kind in ipairs(traffic.kinds) do
      local a, b = before[group][kind], after[group][kind]
      if b.bytes > a.bytes then
        lines[#lines + 1] = ("%s.%s %d %d"):format(group, kind, b.count - a.count,
          b.bytes - a.bytes)
      end
    end
  end
  for link, sent in pairs(messages()) do
    local earlier = messages_before[link]
    if sent.bytes > earlier.bytes then
      lines[#lines + 1] = ("%s.all_to_all %d %d"):format(link, sent.count - earlier.count,
        sent.bytes - earlier.bytes)
    end
  end
  if o.n_pipeline_stages > 1 then
    local memory = trainer:memory()
    lines[#lines + 1] = ("parameters %d"):format(memory.params.here)
    -- With chunks, a step may need the most before all of them exist.
    if o.n_chunks_per_stage == 1 then
      lines[#lines + 1] = ("gradients %d"):format(memory.grads.here)
    end
    lines[#lines + 1] = ("states %d"):format(memory.opt_state.here - 4)  -- without the step count
  end
  if is_first_of_stage then print(table.concat(lines, "; ")) end
end
