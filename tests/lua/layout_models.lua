-- The structure of known models, with Hugging Face's names, as far as it decides how their
-- parameters are laid out: small, without dropout, and without what only changes values.
--
-- Each entry is a function of the sizes: { params = tree, forward = function(params) }.
local redco = require "redco"
local nn, torch = redco.nn, redco.torch

local batch, length = 2, 6

-- Collects parameters by name, of zeros.
local function collector()
  local params = {}
  return params, function(name, ...) params[name] = torch.zeros { ... } end
end

local function linear(p, name, x)
  return torch.linear(x, p[name .. ".weight"], p[name .. ".bias"])
end

local function layer_norm(p, name, x)
  return torch.layer_norm(x, { x:size(-1) }, p[name .. ".weight"], p[name .. ".bias"])
end

local function rms_norm(p, name, x)
  return torch.rms_norm(x, { x:size(-1) }, p[name .. ".weight"], 1e-6)
end

-- [batch, n, positions, size of a head]
local function heads(x, n)
  return x:view { x:size(0), x:size(1), n, x:size(2) / n }:transpose(1, 2)
end

-- The heads side by side again: [batch, positions, width].
local function attend(q, k, v, options)
  local y = nn.attention(q, k, v, options)
  return y:transpose(1, 2):reshape { y:size(0), y:size(2), y:size(1) * y:size(3) }
end

-- Attention of `x` to `memory` by four linear layers.
local function attention(p, names, n_heads, x, memory, options)
  local function projected(i, from) return heads(linear(p, names[i], from), n_heads) end
  local y = attend(projected(1, x), projected(2, memory), projected(3, memory), options)
  return linear(p, names[4], y)
end

local function prefixed(prefix, names)
  local result = {}
  for i, name in ipairs(names) do result[i] = prefix .. name end
  return result
end

local function tokens() return torch.zeros({ batch, length }, { dtype = "int64" }) end
local function positions(from) return torch.arange(length) + (from or 0) end

-- Queries and keys turned by their positions.
local function rotated(x)
  local first, second = unpack(x:chunk(2, -1))
  local angle = torch.ones { length, x:size(-1) }
  return x * angle:cos() + torch.cat({ -second, first }, -1) * angle:sin()
end

local models = {}

function models.gpt2(s)
  local model = redco.models.from_config {
    model_type = "gpt2", vocab_size = s.vocabulary, n_positions = 8,
    n_embd = s.width, n_head = s.heads, n_layer = 2,
  }
  return { params = model.params, forward = function(params)
    return model.loss(params, { input_ids = tokens(), labels = tokens() })
  end }
end

function models.gptj(s)
  local params, add = collector()
  add("transformer.wte.weight", s.vocabulary, s.width)
  for i = 0, 1 do
    local h = ("transformer.h.%d."):format(i)
    for _, part in ipairs { "q", "k", "v", "out" } do
      add(h .. "attn." .. part .. "_proj.weight", s.width, s.width)
    end
    add(h .. "mlp.fc_in.weight", 4 * s.width, s.width)
    add(h .. "mlp.fc_in.bias", 4 * s.width)
    add(h .. "mlp.fc_out.weight", s.width, 4 * s.width)
    add(h .. "mlp.fc_out.bias", s.width)
    add(h .. "ln_1.weight", s.width)
    add(h .. "ln_1.bias", s.width)
  end
  add("transformer.ln_f.weight", s.width)
  add("transformer.ln_f.bias", s.width)
  add("lm_head.weight", s.vocabulary, s.width)
  add("lm_head.bias", s.vocabulary)
  return { params = params, forward = function(p)
    local x = torch.embedding(p["transformer.wte.weight"], tokens())
    for i = 0, 1 do
      local h = ("transformer.h.%d."):format(i)
      local y = layer_norm(p, h .. "ln_1", x)
      local function part(name) return heads(linear(p, h .. "attn." .. name, y), s.heads) end
      local z = attend(rotated(part "q_proj"), rotated(part "k_proj"), part "v_proj",
        { causal = true })
      -- Both branches read the same norm.
      x = x + linear(p, h .. "attn.out_proj", z)
        + linear(p, h .. "mlp.fc_out", torch.gelu(linear(p, h .. "mlp.fc_in", y)))
    end
    return nn.cross_entropy(linear(p, "lm_head", layer_norm(p, "transformer.ln_f", x)), tokens())
  end }
end

-- What OPT and BART call their layers.
local fairseq_attention = { "q_proj", "k_proj", "v_proj", "out_proj" }

local function add_fairseq_layer(add, layer, width, attentions)
  for _, name in ipairs(attentions) do
    for _, part in ipairs(fairseq_attention) do
      add(layer .. name .. "." .. part .. ".weight", width, width)
      add(layer .. name .. "." .. part .. ".bias", width)
    end
    add(layer .. name .. "_layer_norm.weight", width)
    add(layer .. name .. "_layer_norm.bias", width)
  end
  add(layer .. "fc1.weight", 4 * width, width)
  add(layer .. "fc1.bias", 4 * width)
  add(layer .. "fc2.weight", width, 4 * width)
  add(layer .. "fc2.bias", width)
  add(layer .. "final_layer_norm.weight", width)
  add(layer .. "final_layer_norm.bias", width)
end

function models.opt(s)
  local params, add = collector()
  add("model.decoder.embed_tokens.weight", s.vocabulary, s.width)
  add("model.decoder.embed_positions.weight", length + 2, s.width)
  for i = 0, 1 do
    add_fairseq_layer(add, ("model.decoder.layers.%d."):format(i), s.width, { "self_attn" })
  end
  add("model.decoder.final_layer_norm.weight", s.width)
  add("model.decoder.final_layer_norm.bias", s.width)
  return { params = params, forward = function(p)
    local x = torch.embedding(p["model.decoder.embed_tokens.weight"], tokens())
      + torch.embedding(p["model.decoder.embed_positions.weight"], positions(2))
    for i = 0, 1 do
      local layer = ("model.decoder.layers.%d."):format(i)
      local y = layer_norm(p, layer .. "self_attn_layer_norm", x)
      x = x + attention(p, prefixed(layer .. "self_attn.", fairseq_attention), s.heads, y, y,
        { causal = true })
      y = layer_norm(p, layer .. "final_layer_norm", x)
      x = x + linear(p, layer .. "fc2", linear(p, layer .. "fc1", y):relu())
    end
    x = layer_norm(p, "model.decoder.final_layer_norm", x)
    return nn.cross_entropy(torch.linear(x, p["model.decoder.embed_tokens.weight"]), tokens())
  end }
end

function models.bart(s)
  local params, add = collector()
  add("model.shared.weight", s.vocabulary, s.width)
  for _, side in ipairs { "encoder", "decoder" } do
    local stack = "model." .. side .. "."
    add(stack .. "embed_positions.weight", length + 2, s.width)
    add(stack .. "layernorm_embedding.weight", s.width)
    add(stack .. "layernorm_embedding.bias", s.width)
    for i = 0, 1 do
      add_fairseq_layer(add, stack .. ("layers.%d."):format(i), s.width,
        side == "encoder" and { "self_attn" } or { "self_attn", "encoder_attn" })
    end
  end
  add("final_logits_bias", 1, s.vocabulary)
  return { params = params, forward = function(p)
    local function stack_of(side, memory)
      local stack = "model." .. side .. "."
      local x = torch.embedding(p["model.shared.weight"], tokens())
        + torch.embedding(p[stack .. "embed_positions.weight"], positions(2))
      x = layer_norm(p, stack .. "layernorm_embedding", x)
      for i = 0, 1 do
        local layer = stack .. ("layers.%d."):format(i)
        local function attended(name, from, options)
          local y = attention(p, prefixed(layer .. name .. ".", fairseq_attention), s.heads, x,
            from, options)
          return layer_norm(p, layer .. name .. "_layer_norm", x + y)
        end
        x = attended("self_attn", x, { causal = memory ~= nil })
        if memory then x = attended("encoder_attn", memory) end
        local y = linear(p, layer .. "fc2", torch.gelu(linear(p, layer .. "fc1", x)))
        x = layer_norm(p, layer .. "final_layer_norm", x + y)
      end
      return x
    end
    local x = stack_of("decoder", stack_of "encoder")
    local logits = torch.linear(x, p["model.shared.weight"]) + p.final_logits_bias
    return nn.cross_entropy(logits, tokens())
  end }
end

-- With `features` it reads vectors of that size instead of tokens.
function models.llama(s)
  local params, add = collector()
  local kv_width = s.width / s.heads * s.kv_heads
  if s.features then
    add("model.projection.weight", s.width, s.features)
  else
    add("model.embed_tokens.weight", s.vocabulary, s.width)
  end
  for i = 0, 1 do
    local layer = ("model.layers.%d."):format(i)
    add(layer .. "self_attn.q_proj.weight", s.width, s.width)
    add(layer .. "self_attn.k_proj.weight", kv_width, s.width)
    add(layer .. "self_attn.v_proj.weight", kv_width, s.width)
    add(layer .. "self_attn.o_proj.weight", s.width, s.width)
    add(layer .. "mlp.gate_proj.weight", 3 * s.width, s.width)
    add(layer .. "mlp.up_proj.weight", 3 * s.width, s.width)
    add(layer .. "mlp.down_proj.weight", s.width, 3 * s.width)
    add(layer .. "input_layernorm.weight", s.width)
    add(layer .. "post_attention_layernorm.weight", s.width)
  end
  add("model.norm.weight", s.width)
  add("lm_head.weight", s.vocabulary, s.width)
  return { params = params, forward = function(p)
    local x
    if s.features then
      x = linear(p, "model.projection", torch.zeros { batch, length, s.features })
    else
      x = torch.embedding(p["model.embed_tokens.weight"], tokens())
    end
    for i = 0, 1 do
      local layer = ("model.layers.%d."):format(i)
      local y = rms_norm(p, layer .. "input_layernorm", x)
      local function part(name, n) return heads(linear(p, layer .. "self_attn." .. name, y), n) end
      local z = attend(rotated(part("q_proj", s.heads)), rotated(part("k_proj", s.kv_heads)),
        part("v_proj", s.kv_heads), { causal = true, enable_gqa = true })
      x = x + linear(p, layer .. "self_attn.o_proj", z)
      y = rms_norm(p, layer .. "post_attention_layernorm", x)
      local gate = torch.silu(linear(p, layer .. "mlp.gate_proj", y))
      x = x + linear(p, layer .. "mlp.down_proj", gate * linear(p, layer .. "mlp.up_proj", y))
    end
    return nn.cross_entropy(linear(p, "lm_head", rms_norm(p, "model.norm", x)), tokens())
  end }
end

-- Flan-T5: a gated feed-forward layer, a head of its own, and biases by relative position that
-- the first layer has and all use.
function models.t5(s)
  local params, add = collector()
  local parts = { "q", "k", "v", "o" }
  local function layer_of(stack, i, name) return ("%s.block.%d.layer.%s"):format(stack, i, name) end
  local bias_of = "%s.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  add("shared.weight", s.vocabulary, s.width)
  for _, stack in ipairs { "encoder", "decoder" } do
    local attentions = stack == "encoder" and { "SelfAttention" }
      or { "SelfAttention", "EncDecAttention" }
    add(bias_of:format(stack), 32, s.heads)
    for i = 0, 1 do
      for j, name in ipairs(attentions) do
        for _, part in ipairs(parts) do
          add(layer_of(stack, i, (j - 1) .. "." .. name .. "." .. part .. ".weight"), s.width,
            s.width)
        end
        add(layer_of(stack, i, (j - 1) .. ".layer_norm.weight"), s.width)
      end
      local feed_forward = layer_of(stack, i, #attentions .. ".")
      add(feed_forward .. "DenseReluDense.wi_0.weight", 3 * s.width, s.width)
      add(feed_forward .. "DenseReluDense.wi_1.weight", 3 * s.width, s.width)
      add(feed_forward .. "DenseReluDense.wo.weight", s.width, 3 * s.width)
      add(feed_forward .. "layer_norm.weight", s.width)
    end
    add(stack .. ".final_layer_norm.weight", s.width)
  end
  add("lm_head.weight", s.vocabulary, s.width)
  return { params = params, forward = function(p)
    local function stack_of(stack, memory)
      local x = torch.embedding(p["shared.weight"], tokens())
      local distance = positions():unsqueeze(0) - positions():unsqueeze(1)
      local bias = torch.embedding(p[bias_of:format(stack)], distance:clamp(-16, 15) + 16)
        :permute { 2, 0, 1 }:unsqueeze(0)
      if memory then bias = bias:masked_fill(distance:gt(0), -math.huge) end
      for i = 0, 1 do
        local last = memory and 2 or 1
        local y = rms_norm(p, layer_of(stack, i, "0.layer_norm"), x)
        x = x + attention(p, prefixed(layer_of(stack, i, "0.SelfAttention."), parts), s.heads, y,
          y, { mask = bias, scale = 1 })
        if memory then
          y = rms_norm(p, layer_of(stack, i, "1.layer_norm"), x)
          x = x + attention(p, prefixed(layer_of(stack, i, "1.EncDecAttention."), parts), s.heads,
            y, memory, { scale = 1 })
        end
        local wide = layer_of(stack, i, last .. ".DenseReluDense.")
        y = rms_norm(p, layer_of(stack, i, last .. ".layer_norm"), x)
        y = torch.gelu(linear(p, wide .. "wi_0", y)) * linear(p, wide .. "wi_1", y)
        x = x + linear(p, wide .. "wo", y)
      end
      return rms_norm(p, stack .. ".final_layer_norm", x)
    end
    return nn.cross_entropy(linear(p, "lm_head", stack_of("decoder", stack_of "encoder")), tokens())
  end }
end

-- What BERT's family and ViT call the layers of a block. `names` differ in the attention and norms.
local function add_bert_layer(add, layer, width, names)
  for i, name in ipairs(names) do
    local n_out = i == 5 and 4 * width or width
    local n_in = i == 6 and 4 * width or width
    add(layer .. name .. ".weight", n_out, n_in)
    add(layer .. name .. ".bias", n_out)
  end
  for _, norm in ipairs(names.norms) do
    add(layer .. norm .. ".weight", width)
    add(layer .. norm .. ".bias", width)
  end
end

local roberta_names = { "attention.self.query", "attention.self.key", "attention.self.value",
  "attention.output.dense", "intermediate.dense", "output.dense",
  norms = { "attention.output.LayerNorm", "output.LayerNorm" } }

function models.roberta(s)
  local params, add = collector()
  local embeddings = "roberta.embeddings."
  add(embeddings .. "word_embeddings.weight", s.vocabulary, s.width)
  add(embeddings .. "position_embeddings.weight", length + 2, s.width)
  add(embeddings .. "token_type_embeddings.weight", 1, s.width)
  add(embeddings .. "LayerNorm.weight", s.width)
  add(embeddings .. "LayerNorm.bias", s.width)
  for i = 0, 1 do
    add_bert_layer(add, ("roberta.encoder.layer.%d."):format(i), s.width, roberta_names)
  end
  add("lm_head.dense.weight", s.width, s.width)
  add("lm_head.dense.bias", s.width)
  add("lm_head.layer_norm.weight", s.width)
  add("lm_head.layer_norm.bias", s.width)
  add("lm_head.bias", s.vocabulary)
  return { params = params, forward = function(p)
    local function embedded(name, ids)
      return torch.embedding(p[embeddings .. name .. ".weight"], ids)
    end
    local x = embedded("word_embeddings", tokens()) + embedded("token_type_embeddings", tokens())
      + embedded("position_embeddings", positions(2))
    x = layer_norm(p, embeddings .. "LayerNorm", x)
    for i = 0, 1 do
      local names = prefixed(("roberta.encoder.layer.%d."):format(i), roberta_names)
      local norms = prefixed(("roberta.encoder.layer.%d."):format(i), roberta_names.norms)
      x = layer_norm(p, norms[1], x + attention(p, names, s.heads, x, x))
      x = layer_norm(p, norms[2], x + linear(p, names[6], torch.gelu(linear(p, names[5], x))))
    end
    x = layer_norm(p, "lm_head.layer_norm", torch.gelu(linear(p, "lm_head.dense", x)))
    x = torch.linear(x, p[embeddings .. "word_embeddings.weight"], p["lm_head.bias"])
    return nn.cross_entropy(x, tokens())
  end }
end

local vit_names = { "attention.attention.query", "attention.attention.key",
  "attention.attention.value", "attention.output.dense", "intermediate.dense", "output.dense",
  norms = { "layernorm_before", "layernorm_after" } }

function models.vit(s)
  local params, add = collector()
  local embeddings, patch, n_classes = "vit.embeddings.", 4, 24
  add(embeddings .. "cls_token", 1, 1, s.width)
  add(embeddings .. "position_embeddings", 1, 5, s.width)
  add(embeddings .. "patch_embeddings.projection.weight", s.width, 3, patch, patch)
  add(embeddings .. "patch_embeddings.projection.bias", s.width)
  for i = 0, 1 do
    add_bert_layer(add, ("vit.encoder.layer.%d."):format(i), s.width, vit_names)
  end
  add("vit.layernorm.weight", s.width)
  add("vit.layernorm.bias", s.width)
  add("classifier.weight", n_classes, s.width)
  add("classifier.bias", n_classes)
  return { params = params, forward = function(p)
    local projection = embeddings .. "patch_embeddings.projection"
    local x = torch.conv2d(torch.zeros { batch, 3, 2 * patch, 2 * patch },
      p[projection .. ".weight"], p[projection .. ".bias"], { patch, patch })
    x = x:flatten(2):transpose(1, 2)
    x = torch.cat({ p[embeddings .. "cls_token"]:expand { batch, -1, -1 }, x }, 1)
      + p[embeddings .. "position_embeddings"]
    for i = 0, 1 do
      local names = prefixed(("vit.encoder.layer.%d."):format(i), vit_names)
      local norms = prefixed(("vit.encoder.layer.%d."):format(i), vit_names.norms)
      local y = layer_norm(p, norms[1], x)
      x = x + attention(p, names, s.heads, y, y)
      y = layer_norm(p, norms[2], x)
      x = x + linear(p, names[6], torch.gelu(linear(p, names[5], y)))
    end
    x = layer_norm(p, "vit.layernorm", x):select(1, 0)
    return nn.cross_entropy(linear(p, "classifier", x), torch.zeros({ batch }, { dtype = "int64" }))
  end }
end

-- Two convolutions and two layers, for digits.
function models.mnist_cnn()
  local params, add = collector()
  add("conv_0.weight", 32, 1, 3, 3)
  add("conv_0.bias", 32)
  add("conv_1.weight", 64, 32, 3, 3)
  add("conv_1.bias", 64)
  add("dense_0.weight", 256, 7 * 7 * 64)
  add("dense_0.bias", 256)
  add("dense_1.weight", 10, 256)
  add("dense_1.bias", 10)
  return { params = params, forward = function(p)
    local x = torch.zeros { batch, 1, 28, 28 }
    for i = 0, 1 do
      local name = "conv_" .. i
      x = torch.conv2d(x, p[name .. ".weight"], p[name .. ".bias"], 1, 1):relu()
      x = torch.avg_pool2d(x, 2)
    end
    x = linear(p, "dense_1", linear(p, "dense_0", x:flatten(1)):relu())
    return nn.cross_entropy(x, torch.zeros({ batch }, { dtype = "int64" }))
  end }
end

return models
