-- Examples per second of DP-SGD: per-example gradients, clipping, noise and Adam, beside Opacus on
-- the same model and batch, in interleaved runs. Both print the same norm of the clipped sum. One
-- JSON line. --python= names a Python with opacus and safetensors.
local clock = require "clock"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local o = redco.options { python = "python3", batch = 512, micro_batch_size = 128, runs = 7,
  threads = 2, max_grad_norm = 1 }
torch.set_num_threads(o.threads)
local generator = torch.Generator(1)
local new = { generator = generator }

-- The model of examples/private_training.
local params = { conv1 = nn.Conv2d(1, 16, 3, new), conv2 = nn.Conv2d(16, 32, 3, new),
  head = nn.MLP({ 32 * 7 * 7, 32, 10 }, new) }
local batch = { image = torch.rand({ o.batch, 1, 28, 28 }, new),
  label = torch.randint(0, 10, { o.batch }, new) }
local function loss_of(p, example)
  local x = torch.relu(nn.conv2d(p.conv1, example.image, { stride = 2, padding = 1 }))
  x = torch.relu(nn.conv2d(p.conv2, x, { stride = 2, padding = 1 }))
  return (nn.cross_entropy(nn.mlp(p.head, x:flatten(-3)), example.label))
end

local folder = os.tmpname() .. ".d"
assert(os.execute(("mkdir -p %s && mkfifo %s/questions"):format(folder, folder)) == 0)
torch.save({ params = params, batch = batch }, folder .. "/start.safetensors")

-- The peer answers each line with the seconds of a step, and first with the norm.
local answers = assert(io.popen(("%s tests/bench/peer_private.py %s %d %g < %s/questions"):format(
  o.python, folder, o.threads, o.max_grad_norm, folder)))
local ask = assert(io.open(folder .. "/questions", "w"))
local their_norm = tonumber(answers:read "*l")

local function gradients_of(p, noise_multiplier, rng)
  return (redco.privacy.gradients(loss_of, p, batch, { max_grad_norm = o.max_grad_norm,
    noise_multiplier = noise_multiplier, expected_batch_size = o.batch, rng = rng,
    micro_batch_size = o.micro_batch_size }))
end

local squares = 0
for _, gradient in ipairs(redco.tree.leaves(gradients_of(params, 0))) do
  squares = squares + gradient:square():sum():item()
end
local norm = math.sqrt(squares)
assert(their_norm and math.abs(norm - their_norm) < 1e-4 * norm,
  ("the clipped sum has the norm %g, the peer's %s"):format(norm, tostring(their_norm)))

local seconds
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 0, verbose = false },
  collate_fn = function() return {} end,
  loss_fn = function(_, _, p, some) return loss_of(p, some) end,
  train_step_fn = function(rng, state, _, defaults)
    local start = clock.now()
    defaults.apply_gradients(gradients_of(state.params, 1, rng))
    seconds = clock.now() - start
    return {}
  end,
  params = params, optimizer = redco.optim.adam { learning_rate = 1e-3 },
}
local function run_ours()
  trainer:train { examples = { 1 }, per_device_batch_size = 1 }
  return seconds
end

local function run_theirs()
  ask:write "step\n"
  ask:flush()
  return tonumber(answers:read "*l")
end

run_ours()
run_theirs()
local ours, theirs, ratios = {}, {}, {}
for run = 1, o.runs do
  ours[run], theirs[run] = run_ours(), run_theirs()
  ratios[run] = theirs[run] / ours[run]
end
print(('{"name": "private_step", "examples_per_s": %.0f, "peer_examples_per_s": %.0f, '
  .. '"ratio": %.2f, "peak_rss_mb": %.0f}'):format(o.batch / clock.median(ours),
  o.batch / clock.median(theirs), clock.median(ratios), clock.peak_rss_mb()))
ask:close()
answers:close()
os.execute("rm -r " .. folder)
