--- redco.distributions
local distributions = redco.distributions
local function loss_fn(rng, state, params, batch)  -- a policy gradient
  local logits = nn.linear(params, batch.observation)
  local policy = distributions.Categorical { logits = logits }
  local log_prob = policy:log_prob(batch.action)
  return -(log_prob * batch.advantage + 0.01 * policy:entropy()):mean()
end

--- redco.distributions.Normal
local d = redco.distributions.Normal(torch.zeros { 3 }, 2)
print(d, d.mean, d.variance[0])
--> Normal([3])  tensor([0., 0., 0.])  tensor(4.)

--- redco.distributions.TanhNormal
local d = redco.distributions.TanhNormal(torch.zeros { 3 }, 1)
local action = d:sample { rng = redco.Rng(0) }
print(action:abs():lt(1):all(), d.mode)
--> tensor(True)  tensor([0., 0., 0.])

--- redco.distributions.Categorical
local d = redco.distributions.Categorical {
  probs = torch.tensor { 0.5, 0.25, 0.25 },
}
print(d:log_prob(torch.tensor(0)))  --> tensor(-0.6931)

--- redco.distributions.Bernoulli
local d = redco.distributions.Bernoulli { logits = torch.zeros { 2 } }
print(d.probs, d:entropy()[0])  --> tensor([0.5000, 0.5000])  tensor(0.6931)

--- redco.distributions.Independent
local distributions = redco.distributions
local each = distributions.Normal(torch.zeros { 4, 6 }, 1)
local d = distributions.Independent(each, 1)
print(d:log_prob(torch.zeros { 4, 6 }).shape)  --> torch.Size([4])

--- redco.distributions.kl_divergence
local distributions = redco.distributions
local p = distributions.Normal(torch.zeros { 2 }, 1)
local q = distributions.Normal(torch.ones { 2 }, 1)
print(distributions.kl_divergence(p, q))  --> tensor([0.5000, 0.5000])

--- Distribution
local loc = torch.zeros { 2 }
local d = redco.distributions.Normal(loc, 1)
print(d:sample({ rng = redco.Rng(0) }).shape)  --> torch.Size([2])

--- Distribution:sample (after Distribution)
local draws = d:sample { rng = redco.Rng(0), sample_shape = { 1000 } }
print(draws.shape, draws:mean():abs():lt(0.1))
--> torch.Size([1000, 2])  tensor(True)

--- Distribution:rsample (after Distribution)
loc:requires_grad_()
local trained = redco.distributions.Normal(loc, 1)
trained:rsample({ rng = redco.Rng(0) }):sum():backward()
print(loc.grad)  --> tensor([1., 1.])

--- Distribution:rsample_and_log_prob (after Distribution)
local policy = redco.distributions.TanhNormal(loc, 1)
local action, log_prob = policy:rsample_and_log_prob { rng = redco.Rng(0) }
print(action.shape, log_prob.shape)  --> torch.Size([2])  torch.Size([2])

--- Distribution:log_prob (after Distribution)
print(d:log_prob(torch.zeros { 2 }))  --> tensor([-0.9189, -0.9189])

--- Distribution:entropy (after Distribution)
print(d:entropy())  --> tensor([1.4189, 1.4189])
