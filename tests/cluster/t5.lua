-- An encoder and a decoder like T5's: biases by relative position, learned for the first layer and
-- used by all, attention without scaling, and one embedding for both sides and the head.
local redco = require "redco"
local nn, torch = redco.nn, redco.torch

local vocabulary, source_length, target_length, n_layers = 31, 7, 5, 2
local width, inner, n_heads, n_buckets = 16, 24, 4, 8
local head_size = width / n_heads

local function make_params(generator)
  local params = {}
  local function normal(name, n_out, n_in, std)
    params[name .. ".weight"] = nn.init.normal_(torch.empty { n_out, n_in },
      { std = std or 0.2, generator = generator })
  end
  local function norm(name) params[name .. ".weight"] = torch.ones { width } end
  local function attention(name)
    for _, part in ipairs { "q", "k", "v", "o" } do normal(name .. "." .. part, width, width) end
  end
  normal("shared", vocabulary, width, 1)
  for _, stack in ipairs { "encoder", "decoder" } do
    normal(stack .. ".relative_attention_bias", n_buckets, n_heads)
    norm(stack .. ".final_layer_norm")
    for i = 0, n_layers - 1 do
      local block = ("%s.block.%d."):format(stack, i)
      attention(block .. "SelfAttention")
      norm(block .. "self_norm")
      if stack == "decoder" then
        attention(block .. "EncDecAttention")
        norm(block .. "cross_norm")
      end
      normal(block .. "wi", inner, width)
      normal(block .. "wo", width, inner)
      norm(block .. "feed_forward_norm")
    end
  end
  return params
end

-- [1, heads, n, n]: near positions have a bucket each, the far ones share the last of their side.
local function position_bias(table, n, is_causal)
  local position = torch.arange(n, { device = table.device })
  local distance = position:unsqueeze(0) - position:unsqueeze(1)
  local bucket = is_causal and (-distance):clamp(0, n_buckets - 1)
    or distance:clamp(-n_buckets / 2, n_buckets / 2 - 1) + n_buckets / 2
  local bias = torch.embedding(table, bucket):permute { 2, 0, 1 }:unsqueeze(0)
  if not is_causal then return bias end
  return bias:masked_fill(distance:gt(0), -math.huge)
end

local function forward(params, batch)
  local function linear(name, x) return torch.linear(x, params[name .. ".weight"]) end
  local function norm(name, x)
    return torch.rms_norm(x, { width }, params[name .. ".weight"], 1e-6)
  end
  local function attention(name, x, memory, bias)
    local function heads(part, from)
      local shape = { from:size(0), from:size(1), n_heads, head_size }
      return linear(name .. "." .. part, from):view(shape):transpose(1, 2)
    end
    local y = nn.attention(heads("q", x), heads("k", memory), heads("v", memory),
      { mask = bias, scale = 1 })
    return linear(name .. ".o", y:transpose(1, 2):reshape { x:size(0), x:size(1), width })
  end
  local function stack(name, ids, memory)
    local hidden = torch.embedding(params["shared.weight"], ids)
    local bias = position_bias(params[name .. ".relative_attention_bias.weight"], ids:size(1),
      memory ~= nil)
    local function apply_block(i, x)
      local block = ("%s.block.%d."):format(name, i)
      local y = norm(block .. "self_norm", x)
      x = x + attention(block .. "SelfAttention", y, y, bias)
      if memory then
        y = norm(block .. "cross_norm", x)
        x = x + attention(block .. "EncDecAttention", y, memory)
      end
      y = torch.relu(linear(block .. "wi", norm(block .. "feed_forward_norm", x)))
      return x + linear(block .. "wo", y)
    end
    for i = 0, n_layers - 1 do hidden = nn.block(apply_block, i, hidden) end
    return norm(name .. ".final_layer_norm", hidden)
  end
  local memory = stack("encoder", batch.input_ids)
  local hidden = stack("decoder", batch.decoder_input_ids, memory)
  return torch.linear(hidden / math.sqrt(width), params["shared.weight"])
end

return function(generator, options)
  local examples = {}
  for i = 1, options.n_examples do
    examples[i] = {
      source = torch.randint(1, vocabulary, { source_length }, { generator = generator }),
      target = torch.randint(1, vocabulary, { target_length }, { generator = generator }),
    }
  end
  return {
    params = make_params(generator),
    examples = examples,
    collate_fn = function(batch)
      local sources, targets = {}, {}
      for i, example in ipairs(batch) do sources[i], targets[i] = example.source, example.target end
      local labels = torch.stack(targets)
      local start = torch.zeros({ #batch, 1 }, { dtype = "int64" })
      return {
        input_ids = torch.stack(sources), labels = labels,
        decoder_input_ids = torch.cat({ start, labels:narrow(1, 0, target_length - 1) }, 1),
      }
    end,
    loss_fn = function(_, _, params, batch)
      return nn.cross_entropy(forward(params, batch), batch.labels)
    end,
    pred_fn = function(_, params, batch) return forward(params, batch) end,
  }
end
