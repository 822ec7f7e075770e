--- Phi-3.5-MoE (Microsoft, 2024), as Hugging Face's `PhimoeForCausalLM`: mixtures whose router
--- draws the two experts of a token one after the other in training, as SparseMixer (Liu et al.,
--- 2023, arXiv 2310.00811).
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local native = require "redco.native"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"
local windows = require "redco.models.layers.windows"

-- Chooses one expert for each token. Returns the weights and numbers [N, 1]. `scores` [N, n] are
-- the router's; `open` has -inf instead for an expert that is already chosen. Experts whose score
-- is below the best by more than a share of 2 `noise` are left out.
local function one_expert(scores, open, noise, o)
  local gates = torch.no_grad(function()
    local best = open:topk(1, -1)
    return ((best - scores) / torch.maximum(scores:abs(), best)):gt(2 * noise)
  end)
  gates = open:masked_fill(gates, -math.huge)
  if not o.train then
    local numbers = gates:detach():argmax(-1, true)
    return gates:softmax(-1):gather(1, numbers), numbers
  end
  local numbers = torch.no_grad(function()
    local draws = torch.empty_like(gates):exponential_(1, { generator = o.rng })
    return (gates - draws:log()):argmax(-1, true)
  end)
  local weights = gates:softmax(-1):gather(1, numbers)
  -- Heun's method of third order: a weight that is not the largest counts only a third, with a
  -- probability of 3/4. Its gradient ignores this.
  local factor = torch.no_grad(function()
    local is_best = numbers:eq(gates:argmax(-1, true))
    local is_kept = torch.empty_like(weights):uniform_(0, 1, { generator = o.rng }):gt(0.75)
    return is_best:logical_or(is_kept):to(weights.dtype) * 0.6667 + 0.3333
  end)
  return weights + (weights * (factor - 1)):detach(), numbers
end

local function new_route(noise)
  return function(params, name, x, o)
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(blocks.linear(params, name .. ".gate", x, o))
    local scores = logits:to(blocks.wide_dtype(x))
    local weights, numbers = one_expert(scores, scores, noise, o)
    local taken = torch.zeros_like(scores):scatter(1, numbers, 1):gt(0)
    local others, second = one_expert(scores, scores:masked_fill(taken, -math.huge), noise, o)
    return logits, torch.cat({ weights, others }, -1), torch.cat({ numbers, second }, -1)
  end
end

-- Returns the mixture, which adds noise to its input in training.
local function new_mixture(c)
  local mixture = experts.new(c, {
    n = c.num_local_experts, inner = c.intermediate_size, route = new_route(c.router_jitter_noise),
    name = "block_sparse_moe", names = { "w1", "w3", "w2" },
  })
  local forward, noise = mixture.forward, c.input_jitter_noise
  function mixture.forward(params, name, x, o)
    if o.train and noise > 0 then
      x = x * torch.empty_like(x:detach()):uniform_(1 - noise, 1 + noise, { generator = o.rng })
    end
    return forward(params, name, x, o)
  end
  return mixture
end

local phimoe = {
  model_type = "phimoe",
  models = "Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE",
  remarks = "experts; long texts have the long factors of positions, as in version 4",
  architecture = "PhimoeForCausalLM",
  tasks = tasks.of_decoder("Phimoe", {}),
  defaults = {
    vocab_size = 32064,
    intermediate_size = 6400,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 1000000,
    num_experts_per_tok = 2,
    num_local_experts = 16,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    router_jitter_noise = 0.01,
    input_jitter_noise = 0,
    attention_bias = false,
    lm_head_bias = false,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "sliding_window" },
  only = { num_experts_per_tok = 2 },
  n_experts = "num_local_experts",
  -- Texts beyond this length have other angles at all positions.
  restart_length = function(c) return c.rope_scaling and c.original_max_position_embeddings end,
}

function phimoe.check(c)
  local scaling = c.rope_scaling
  if not scaling then return end
  if scaling.rope_type ~= "longrope" then
    fail("phimoe: rope_scaling of type %s is not supported, only longrope", scaling.rope_type)
  end
  for _, key in ipairs { "short_mscale", "long_mscale" } do
    if type(scaling[key]) ~= "number" then
      fail("phimoe: rope_scaling.%s is %s, expected a number", key, scaling[key])
    end
  end
  if not c.original_max_position_embeddings then
    fail "phimoe: rope_scaling has no original_max_position_embeddings"
  end
end

function phimoe.facts(c)
  local mixture = new_mixture(c)
  return {
    norm = norms.layer, qkv_bias = c.attention_bias, o_bias = c.attention_bias,
    head_bias = c.lm_head_bias, window = windows.of_all(c),
    experts = function() return mixture end,
    rope = function(_, whole)
      whole.factors_of_lengths = { whole.short_mscale, whole.long_mscale }
      return whole
    end,
  }
end

local family = new_family(phimoe)
local complete = family.complete

-- transformers reads the length of the training texts in rope_scaling.
function family.complete(c, is_file)
  complete(c, is_file)
  local scaling = c.rope_scaling
  if not scaling then return end
  c.original_max_position_embeddings = scaling.original_max_position_embeddings
    or c.original_max_position_embeddings
  scaling.original_max_position_embeddings = c.original_max_position_embeddings
end

return family
