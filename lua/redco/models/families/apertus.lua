--- Apertus (Swiss AI, 2025), as Hugging Face's `ApertusForCausalLM`: LLaMA with norms of each head
--- of q and k, and feed-forward layers without a gate, whose activation has parameters.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

-- Initialises a parameter so that its softplus, a slope of the activation, is y.
local function before_softplus(y) return blocks.constant(math.log(math.exp(y) - 1)) end

-- xIELU (Huang and Schlag, 2024): a parabola on the right, an exponential on the left. Model files
-- also contain beta and eps, which are not trained.
local function xielu(params, name, x)
  local function constant(part) return params[name .. part]:detach() end
  local function slope(part)
    local y = params[name .. part]
    return torch.log1p(y:abs():neg():exp()) + y:clamp(0)  -- softplus
  end
  local beta = constant ".beta"
  local left = (torch.expm1(torch.minimum(x, constant ".eps")) - x) * (slope ".alpha_n" + beta)
  return torch.where(x:gt(0), slope ".alpha_p" * x * x, left) + x * beta
end

-- Returns a feed-forward layer like that of llama_mlp.lua.
local function new_mlp(c)
  local mlp = {}

  function mlp.add_parameters(name, linear, add)
    linear(name .. ".up_proj", c.hidden_size, c.intermediate_size, false)
    linear(name .. ".down_proj", c.intermediate_size, c.hidden_size, false)
    local activation = name .. ".act_fn."
    add(activation .. "alpha_p", { 1 }, before_softplus(0.8))
    add(activation .. "alpha_n", { 1 }, before_softplus(0.3))
    add(activation .. "beta", {}, blocks.constant(0.5))
    add(activation .. "eps", {}, blocks.constant(-1e-6))
  end

  function mlp.forward(params, name, x, o)
    local y = xielu(params, name .. ".act_fn", blocks.linear(params, name .. ".up_proj", x, o))
    return blocks.linear(params, name .. ".down_proj", y, o)
  end

  return mlp
end

return new_family {
  model_type = "apertus",
  models = "Apertus",
  architecture = "ApertusForCausalLM",
  tasks = { features = tasks.features "Apertus", token_classification = {
    architecture = "ApertusForTokenClassification", head = "score" } },
  defaults = {
    vocab_size = 131072,
    intermediate_size = 14336,
    hidden_act = "xielu",
    max_position_embeddings = 65536,
    rms_norm_eps = 1e-5,
    rope_theta = 12000000,
    attention_bias = false,
    pad_token_id = 3,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "mlp_bias", "post_norm", "qk_norm" },  -- keys of early folders, not read
  complete = function(c, is_file)
    if is_file or c.rope_scaling or c.rope_parameters then return end
    c.rope_scaling = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 8192 }
  end,
  facts = function(c)
    local mlp = c.hidden_act == "xielu" and new_mlp(c)
    return {
      norms = { "attention_layernorm", nil, "feedforward_layernorm", nil }, head_norms = "head",
      qkv_bias = c.attention_bias, o_bias = c.attention_bias,
      mlp_names = { "up_proj", "down_proj" }, experts = mlp and function() return mlp end or nil,
    }
  end,
}
