-- A decoder like LLaMA's: RMS norms, rotary positions, gated feed-forward layers, and fewer heads
-- of keys and values than processes that share the model.
local redco = require "redco"
local nn, torch = redco.nn, redco.torch

local vocabulary, length, n_layers, width, inner = 33, 6, 2, 16, 24
local n_heads = 4
local head_size = width / n_heads

local function make_params(generator, n_kv_heads)
  local params = {}
  local function linear(name, n_in, n_out)
    params[name .. ".weight"] = nn.init.normal_(torch.empty { n_out, n_in },
      { std = 0.2, generator = generator })
  end
  linear("embed_tokens", width, vocabulary)
  linear("lm_head", width, vocabulary)
  params["norm.weight"] = torch.ones { width }
  for i = 0, n_layers - 1 do
    local layer = ("layers.%d."):format(i)
    linear(layer .. "self_attn.q_proj", width, n_heads * head_size)
    linear(layer .. "self_attn.k_proj", width, n_kv_heads * head_size)
    linear(layer .. "self_attn.v_proj", width, n_kv_heads * head_size)
    linear(layer .. "self_attn.o_proj", n_heads * head_size, width)
    linear(layer .. "mlp.gate_proj", width, inner)
    linear(layer .. "mlp.up_proj", width, inner)
    linear(layer .. "mlp.down_proj", inner, width)
    params[layer .. "input_layernorm.weight"] = torch.ones { width }
    params[layer .. "post_attention_layernorm.weight"] = torch.ones { width }
  end
  return params
end

-- [length, head_size]: the angles of each position, for both halves of a head.
local function angles(x)
  local like = { dtype = x.dtype, device = x.device }
  local frequency = torch.arange(0, head_size, 2, like):div(-head_size)
  local half = torch.arange(length, like):unsqueeze(1) * torch.pow(100, frequency)
  return torch.cat({ half, half }, 1)
end

local function rotated(x, cos, sin)
  local first, second = x[{ "...", { 0, head_size / 2 } }], x[{ "...", { head_size / 2 } }]
  return x * cos + torch.cat({ -second, first }, -1) * sin
end

local function logits(params, input_ids, n_kv_heads)
  local batch = input_ids:size(0)
  local function linear(name, x) return torch.linear(x, params[name .. ".weight"]) end
  local function norm(name, x)
    return torch.rms_norm(x, { width }, params[name .. ".weight"], 1e-6)
  end
  local function heads(name, x, n)
    return linear(name, x):view { batch, length, n, head_size }:transpose(1, 2)
  end
  local hidden = torch.embedding(params["embed_tokens.weight"], input_ids)
  local angle = angles(hidden)
  local cos, sin = angle:cos(), angle:sin()
  local function apply_layer(i, x)
    local layer = ("layers.%d."):format(i)
    local y = norm(layer .. "input_layernorm", x)
    local q = rotated(heads(layer .. "self_attn.q_proj", y, n_heads), cos, sin)
    local k = rotated(heads(layer .. "self_attn.k_proj", y, n_kv_heads), cos, sin)
    local v = heads(layer .. "self_attn.v_proj", y, n_kv_heads)
    y = nn.attention(q, k, v, { causal = true, enable_gqa = true })
    y = y:transpose(1, 2):reshape { batch, length, n_heads * head_size }
    x = x + linear(layer .. "self_attn.o_proj", y)
    y = norm(layer .. "post_attention_layernorm", x)
    local gate = torch.silu(linear(layer .. "mlp.gate_proj", y))
    return x + linear(layer .. "mlp.down_proj", gate * linear(layer .. "mlp.up_proj", y))
  end
  for i = 0, n_layers - 1 do hidden = nn.block(apply_layer, i, hidden) end
  return linear("lm_head", norm("norm", hidden))
end

return function(generator, options)
  local n_kv_heads, examples = options.n_kv_heads, {}
  for i = 1, options.n_examples do
    examples[i] = torch.randint(vocabulary, { length + 1 }, { generator = generator })
  end
  return {
    params = make_params(generator, n_kv_heads),
    examples = examples,
    collate_fn = function(batch)
      local tokens = torch.stack(batch)
      return { input_ids = tokens:narrow(1, 0, length), labels = tokens:narrow(1, 1, length) }
    end,
    loss_fn = function(_, _, params, batch)
      return nn.cross_entropy(logits(params, batch.input_ids, n_kv_heads), batch.labels)
    end,
    pred_fn = function(_, params, batch) return logits(params, batch.input_ids, n_kv_heads) end,
  }
end
