-- What the architectures of this folder share: a small language model around blocks, and parts of
-- blocks.
--
-- An architecture is { name, params(), loss(params, batch), rules }. A batch has `ids` [batch,
-- length + 1], `images` [batch, 3, 16, 16] and `labels` [batch]. `rules` are those of a layout by
-- hand: a list, or a function of the number of shards that returns one.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local M = {
  n_layers = 2, batch = 4, length = 16, width = 64, n_heads = 4, vocabulary = 128, n_classes = 10,
}
M.head_dim = M.width / M.n_heads
local width = M.width
local generator = torch.Generator(5)

--- Random numbers; rows are about as long as those that layers are initialized with.
function M.weight(...)
  local shape = { ... }
  return torch.randn(shape, { generator = generator }) * 0.1
end
function M.linear(n_out, n_in) return { weight = M.weight(n_out, n_in) } end
function M.biased(n_out, n_in)
  return { weight = M.weight(n_out, n_in), bias = torch.zeros { n_out } }
end
function M.norm(n) return { weight = torch.ones { n or width } } end

--- [batch, length, features] -> [batch, heads, length, head_dim], and back.
function M.heads(x) return x:view { x:size(0), x:size(1), -1, M.head_dim }:transpose(1, 2) end
function M.merged(x)
  return x:transpose(1, 2):reshape { x:size(0), x:size(2), x:size(1) * x:size(3) }
end
function M.attend(q, k, v) return M.merged(nn.attention(q, k, v, { causal = true })) end

--- The projections of an attention, and their rules.
function M.qkvo()
  return { q = M.linear(width, width), k = M.linear(width, width), v = M.linear(width, width),
    o = M.linear(width, width) }
end
M.qkvo_rules = { { "q.weight", 0 }, { "k.weight", 0 }, { "v.weight", 0 }, { "o.weight", 1 } }

function M.feed_forward()
  return { up = M.linear(4 * width, width), down = M.linear(width, 4 * width) }
end
function M.fed(p, x)
  return x + nn.linear(p.ff.down, torch.gelu(nn.linear(p.ff.up, nn.rms_norm(p.norm_2, x))))
end
M.pair = { { "ff.up.weight", 0 }, { "ff.down.weight", 1 } }

--- The rules of several lists, one after the other.
function M.joined(...)
  local all = {}
  for _, rules in ipairs { ... } do
    for _, rule in ipairs(rules) do all[#all + 1] = rule end
  end
  return all
end

--- A list of architectures with functions that add to it.
function M.list()
  local list = {}

  --- Adds a language model of blocks; block(p, x, all) maps [batch, length, width] to the same.
  --- `options`: more = function(all), which adds parameters that all blocks share; is_tied = the
  --- head is the embedding.
  function list.add(name, params, block, rules, options)
    options = options or {}
    local architecture = { name = name }
    function architecture.params()
      local all = { embedding = M.weight(M.vocabulary, width) * 10, norm = M.norm(),
        head = { weight = M.weight(M.vocabulary, width) }, blocks = {} }
      for i = 1, M.n_layers do all.blocks[i] = params() end
      if options.is_tied then all.head = nil end
      if options.more then options.more(all) end
      return all
    end
    function architecture.loss(all, batch)
      local x = torch.embedding(all.embedding, batch.ids:narrow(1, 0, M.length))
      for _, p in ipairs(all.blocks) do x = block(p, x, all) end
      x = nn.rms_norm(all.norm, x)
      local logits = all.head and nn.linear(all.head, x) or x:matmul(all.embedding:t())
      return nn.cross_entropy(logits, batch.ids:narrow(1, 1, M.length))
    end
    function architecture.rules(n_shards)
      local own = type(rules) == "function" and rules(n_shards) or rules
      local head = options.is_tied and {} or { { "head.weight", 0 } }
      return M.joined({ { "embedding", 0 } }, head, own)
    end
    list[#list + 1] = architecture
  end

  --- Adds one whose blocks are an attention and the usual feed-forward layer.
  function list.add_attention(name, params, attention, rules, options)
    list.add(name, function()
      local p = params()
      p.norm_1, p.norm_2, p.ff = M.norm(), M.norm(), M.feed_forward()
      return p
    end, function(p, x, all)
      return M.fed(p, x + attention(p, nn.rms_norm(p.norm_1, x), all))
    end, function(n_shards)
      return M.joined(type(rules) == "function" and rules(n_shards) or rules, M.pair)
    end, options)
  end

  --- Adds one whose blocks are a feed-forward layer of another form.
  function list.add_fed(name, params, feed, rules)
    list.add(name, function()
      local p = params()
      p.norm = M.norm()
      return p
    end, function(p, x) return x + feed(p, nn.rms_norm(p.norm, x)) end, rules)
  end

  return list
end

return M
