--- Mixtures whose router chooses from the best groups of experts (DeepSeek-AI, 2024), beside a
--- layer for all tokens. The keys of the configuration are DeepSeek's. Shapes: N tokens, n experts.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local native = require "redco.native"
local ties = require "redco.models.ties"
local torch = require "redco.torch"

local router = {}

--- Raises an error if the experts of the chosen groups are too few. A group is as good as its
--- `n_best` best experts.
function router.check(c, n_best)
  if (c.first_k_dense_replace or 0) >= c.num_hidden_layers then return end  -- there are none
  blocks.check_multiple(c, "n_routed_experts", "n_group")
  local in_group = c.n_routed_experts / c.n_group
  if in_group < n_best or c.topk_group > c.n_group
    or c.num_experts_per_tok > c.topk_group * in_group then
    fail("%s: %d experts in %d groups, of which topk_group = %d: expected at least %d in a group "
      .. "and num_experts_per_tok (%d) in the chosen groups", c.model_type, c.n_routed_experts,
      c.n_group, c.topk_group, n_best, c.num_experts_per_tok)
  end
end

-- Keeps the scores [N, n] of the groups whose `n_best` best experts have the largest sums; others
-- become `rest`.
local function of_best_groups(c, n_best, scores, rest)
  local groups = scores:view { scores:size(0), c.n_group, c.n_routed_experts / c.n_group }
  local sums = (groups:topk(n_best, -1)):sum { -1 }
  local best = torch.zeros_like(sums):scatter(1, select(2, sums:topk(c.topk_group, -1)), 1)
  return groups:masked_fill(best:eq(0):unsqueeze(-1), rest):view(scores.shape)
end

-- Returns a router like those of experts.lua.
local function new_route(c, given)
  local rest = given.rest or ((ties.version(c) or 0) >= 5 and -math.huge or 0)
  return function(params, name, x)
    adapter.refuse(params, name .. ".gate")
    local dtype = blocks.wide_dtype(x)
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(
      native.linear(x:to(dtype), params[name .. ".gate.weight"]:to(dtype)))
    local scores = given.score(logits)
    local numbers = torch.no_grad(function()
      local of_choice = scores:detach()
      if given.bias then of_choice = of_choice + params[name .. "." .. given.bias]:detach() end
      if given.n_best then of_choice = of_best_groups(c, given.n_best, of_choice, rest) end
      return select(2, of_choice:topk(c.num_experts_per_tok, -1))
    end)
    local weights = scores:gather(1, numbers)
    if c.norm_topk_prob then
      weights = weights / (weights:sum({ -1 }, true) + (given.least_sum or 1e-20))
    end
    return logits, weights * c.routed_scaling_factor, numbers
  end
end

--- Returns a mixture of experts.lua. given: score(logits) -> scores; n_best, or nil if there are no
--- groups; bias, the name of a vector that is added to the scores, is not trained, and changes only
--- which experts are chosen; bias_sizes, if not [n]; rest, the score of experts of other groups, by
--- default 0, and -inf in folders of version 5 of transformers; least_sum, which is added to the
--- sum by which weights are divided; name, names and shared as in experts.lua, by default
--- DeepSeek's.
function router.new(c, given)
  local n_shared = c.n_shared_experts
  return experts.new(c, {
    n = c.n_routed_experts, inner = c.moe_intermediate_size, route = new_route(c, given),
    name = given.name, names = given.names or { "gate_proj", "up_proj", "down_proj" },
    shared_bias = given.shared_bias,
    shared = given.shared or n_shared > 0 and c.moe_intermediate_size * n_shared or nil,
    add_more = given.bias and function(name, add)
      add(name .. "." .. given.bias, given.bias_sizes or { c.n_routed_experts }, blocks.zeros)
    end,
  })
end

--- Returns a function of i: the mixture of layer i, or nil if it is one of the first
--- first_k_dense_replace layers, which are ordinary.
function router.layers(c, given)
  local mixture = router.new(c, given)
  return function(i) return i >= c.first_k_dense_replace and mixture or nil end
end

--- The same as DeepSeek-V3 has them.
function router.sigmoid_layers(c)
  return router.layers(c,
    { score = torch.sigmoid, n_best = 2, bias = "gate.e_score_correction_bias" })
end

return router
