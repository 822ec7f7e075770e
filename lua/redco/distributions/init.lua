--- Probability distributions, as in torch.distributions.
local continuous = require "redco.distributions.continuous"
local discrete = require "redco.distributions.discrete"
local distribution = require "redco.distributions.distribution"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"
local torch = require "redco.torch"

local distributions = {
  Normal = continuous.Normal, TanhNormal = continuous.TanhNormal,
  Categorical = discrete.Categorical, Bernoulli = discrete.Bernoulli,
}

local function check(where, name, given)
  if not distribution.is(given) then
    fail("%s: %s: expected a Distribution, got %s", where, name, native.describe(given))
  end
end

distributions.Independent = registry.define("redco.distributions.Independent", [[
Independent(base: Distribution, n) -> Distribution
Makes the last n dimensions of the batch_shape of `base` one event: log_prob, entropy and
kl_divergence are sums over them. An action of several numbers has one log-probability.]],
function(base, n)
  check("distributions.Independent", "base", base)
  local n_batch = #base.batch_shape - (tonumber(n) or math.huge)
  if n_batch < 0 or n < 0 or n % 1 ~= 0 then
    fail("distributions.Independent: n: expected a number from 0 to %d, the dimensions of the "
      .. "base, got %s", #base.batch_shape, n)
  end
  local batch_shape, event_shape, dims = {}, {}, {}
  for i, size in ipairs(base.batch_shape) do
    table.insert(i <= n_batch and batch_shape or event_shape, size)
  end
  for i = 1, n do dims[i] = -i end

  local function summed(values) return n == 0 and values or values:sum(dims) end

  local function sum_of(f) return f and function(...) return summed(f(...)) end end

  return distribution.new {
    name = "Independent", base = base, summed = summed, n = n,
    batch_shape = batch_shape, event_shape = event_shape,
    is_differentiable = rawget(base, "is_differentiable"),
    draw = base.draw,
    draw_and_log_prob = rawget(base, "draw_and_log_prob") and function(...)
      local value, log_prob = base.draw_and_log_prob(...)
      return value, summed(log_prob)
    end or nil,
    density = sum_of(base.density), entropy_of = sum_of(rawget(base, "entropy_of")),
    mean_of = rawget(base, "mean_of"), variance_of = rawget(base, "variance_of"),
    mode_of = rawget(base, "mode_of"),
  }
end)

local divergences = {}

function divergences.Normal(p, q)
  local ratio = (p.scale / q.scale):square()
  return 0.5 * (ratio + ((p.loc - q.loc) / q.scale):square() - 1 - ratio:log())
end

divergences.TanhNormal = divergences.Normal  -- tanh is one-to-one

function divergences.Categorical(p, q)
  local terms = p.probs * (p.log_probs - q.log_probs)
  terms = terms:masked_fill(q.probs:eq(0):logical_and(p.probs:gt(0)), math.huge)
  return terms:masked_fill(p.probs:eq(0), 0):sum(-1)
end

function divergences.Bernoulli(p, q)
  -- log(p) and log(1 - p) of a logit.
  local function log_of(logits) return -torch.softplus(-logits), -torch.softplus(logits) end
  local p1, p0 = log_of(p.logits)
  local q1, q0 = log_of(q.logits)
  local function term(p_share, q_share, difference)
    local values = p_share * difference
    if q.is_clamped then
      values = values:masked_fill(q_share:eq(0):logical_and(p_share:gt(0)), math.huge)
    end
    return values:masked_fill(p_share:eq(0), 0)
  end
  return term(p.probs, q.probs, p1 - q1) + term(1 - p.probs, 1 - q.probs, p0 - q0)
end

local function divergence(p, q)
  if p.name ~= q.name then
    fail("distributions.kl_divergence: there is none from %s to %s; both must be of one kind",
      p.name, q.name)
  end
  if p.name ~= "Independent" then return divergences[p.name](p, q) end
  if p.n ~= q.n then
    fail("distributions.kl_divergence: p is independent over %d dimensions, q over %d", p.n, q.n)
  end
  return p.summed(divergence(p.base, q.base))
end

distributions.kl_divergence = registry.define("redco.distributions.kl_divergence", [[
kl_divergence(p: Distribution, q: Distribution) -> Tensor [batch_shape]
Returns the Kullback-Leibler divergence of p from q, two distributions of one kind.]],
function(p, q)
  check("distributions.kl_divergence", "p", p)
  check("distributions.kl_divergence", "q", q)
  return divergence(p, q)
end)

return registry.define("redco.distributions", [[
redco.distributions
Probability distributions with PyTorch's names. A constructor takes parameters and returns a
`Distribution`, which draws from a Generator and scores values. A policy's distribution is made anew
in every loss_fn.]], strict("redco.distributions", distributions))
