--- The reference cases of algorithms: their arrays, and the networks that they use.
local redco = require "redco"
local nn, rl, torch, tree = redco.nn, redco.rl, redco.torch, redco.tree
local distributions = redco.distributions

local cases = {}

--- Returns the folders of a case: in this repository, and in those that REDCO_CASES names.
function cases.folders(name)
  local source = os.getenv "REDCO_SOURCE"
  local folders = { (source and source .. "/tests" or "..") .. "/cases/" .. name }
  for folder in (os.getenv "REDCO_CASES" or ""):gmatch "[^:]+" do
    local file = io.open(folder .. "/" .. name .. "/expected.json")
    if file then
      file:close()
      folders[#folders + 1] = folder .. "/" .. name
    end
  end
  return folders
end

--- Returns the figures of a case, and a function that returns the arrays whose names begin with a
--- prefix, as a tree.
function cases.read(folder)
  local arrays = torch.load(folder .. "/expected.safetensors")
  return redco.data.json(folder .. "/expected.json"), function(prefix)
    local found = {}
    for name, array in pairs(arrays) do
      local rest = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
      if rest then
        local branch = found
        for key in rest:gmatch "([^.]+)%." do
          key = tonumber(key) and key + 1 or key
          branch[key] = branch[key] or {}
          branch = branch[key]
        end
        branch[rest:match "[^.]+$"] = array
      end
    end
    return found
  end
end

--- Fails unless the norm of the difference is at most `tolerance` of the norm of what is expected.
function cases.expect_near(actual, expected, what, tolerance)
  local function plain(x)
    return torch.is_tensor(x) and x:full():double() or torch.tensor(x, { dtype = "float64" })
  end
  actual, expected = plain(actual), plain(expected)
  local off = (actual - expected):norm():item() / math.max(expected:norm():item(), 1e-12)
  if off ~= off or off > (tolerance or 1e-5) then
    error(("%s is off by %.3g"):format(what, off), 2)
  end
end

--- Compares two trees of tensors.
function cases.expect_trees(actual, expected, what, tolerance)
  local paths, leaves = redco.tree.paths(expected), redco.tree.leaves(actual)
  for i, leaf in ipairs(redco.tree.leaves(expected)) do
    cases.expect_near(leaves[i], leaf, what .. " " .. paths[i], tolerance)
  end
end

--- The losses of one example of the case dp_sgd.
cases.private_losses = {
  conv = function(params, example)
    local x = nn.conv2d(params.conv, example.inputs:view { 1, 8, 8 }, { padding = 1 })
    x = torch.group_norm(x:unsqueeze(0), 2, { weight = params.norm.weight,
      bias = params.norm.bias }):squeeze(0)
    x = torch.avg_pool2d(torch.relu(x), 2):flatten()
    return nn.cross_entropy(nn.linear(params.fc, x), example.labels)
  end,
  text = function(params, example)
    local x = torch.embedding(params.embed.weight, example.inputs)
    x = torch.tanh(nn.layer_norm(params.norm, x)):mean(0)
    return nn.cross_entropy(nn.linear(params.fc, x), example.labels)
  end,
}

local function mlp(params, x, activation)
  return nn.mlp(params, x, { activation = activation })
end

--- The functions of a run of the case ppo: policy(params, observations), value(params,
--- observations), and losses(params, rows), a table of tensors by the names of the case.
function cases.ppo(kind, h)
  local ppo = {}
  function ppo.policy(params, observations)
    local output = mlp(params.actor, observations, torch.tanh)
    if kind == "discrete" then return distributions.Categorical { logits = output } end
    return distributions.Independent(distributions.Normal(output, params.log_std:exp()), 1)
  end
  function ppo.value(params, observations)
    return mlp(params.critic, observations, torch.tanh):squeeze(-1)
  end
  function ppo.losses(params, rows)
    local policy, found = ppo.policy(params, rows.observations), {}
    local scaled = rows.advantages - rows.advantages:mean()
    local metrics
    found.pg_loss, metrics = rl.policy_loss { clip = h.clip_coef,
      log_probs = policy:log_prob(rows.actions), old_log_probs = rows.log_probs,
      advantages = scaled / (rows.advantages:std() + 1e-8) }
    found.approx_kl, found.clipfrac = metrics.approx_kl, metrics.clip_fraction
    found.v_loss = rl.value_loss { values = ppo.value(params, rows.observations),
      returns = rows.returns, old_values = rows.values, clip = h.clip_coef }
    found.entropy = policy:entropy():mean()
    found.loss = found.pg_loss - h.ent_coef * found.entropy + h.vf_coef * found.v_loss
    return found
  end
  return ppo
end

--- The losses of the case ddpg: each returns a tensor and a table of further figures.
cases.ddpg = {}

local function act(params, observations)
  return 2 * mlp(params.actor, observations, torch.relu):tanh()
end

local function judge(params, observations, actions)
  return mlp(params.critic, torch.cat({ observations, actions }, -1), torch.relu):squeeze(-1)
end

function cases.ddpg.critic_loss(params, target, batch, gamma)
  local goal = batch.rewards + gamma * (1 - batch.dones)
    * judge(target, batch.next_observations, act(target, batch.next_observations))
  local values = judge(params, batch.observations, batch.actions)
  local loss = (values - goal):square():mean()
  return loss, { critic_loss = loss, q_mean = values:mean(), target_mean = goal:mean() }
end

--- Of the actor, with the critic as a constant.
function cases.ddpg.actor_loss(params, batch)
  local critic = tree.map(function(t) return t:detach() end, params.critic)
  return -judge({ critic = critic }, batch.observations, act(params, batch.observations)):mean()
end

--- Fails unless the figures of an update, by name, are near those expected.
function cases.expect_figures(found, expected, what)
  for name, value in pairs(expected) do
    local figure = torch.is_tensor(found[name]) and found[name]:full():item() or found[name]
    local off = math.abs((figure or 0 / 0) - value)
    if off ~= off or off > 1e-5 * math.max(math.abs(value), 0.1) then
      error(("%s of %s is off by %g"):format(name, what, off), 2)
    end
  end
end

return cases
