--- redco.privacy
local privacy = redco.privacy
local run = { sample_rate = 256 / 60000, steps = 3515, delta = 1e-5 }
local noise_multiplier = privacy.noise_multiplier {
  target_epsilon = 4, sample_rate = run.sample_rate, steps = run.steps,
  delta = run.delta,
}
print(("%.3f"):format(noise_multiplier)) --> 0.667

--- redco.privacy.epsilon
local privacy = redco.privacy
local epsilon = privacy.epsilon {
  noise_multiplier = 1, sample_rate = 0.01, steps = 1000, delta = 1e-5,
}
print(("%.3f"):format(epsilon)) --> 1.838
epsilon = privacy.epsilon {
  noise_multiplier = 1, sample_rate = 0.01, steps = 1000, delta = 1e-5,
  accountant = "rdp",
  earlier = { { noise_multiplier = 2, sample_rate = 0.01, steps = 500 } },
}
print(("%.3f"):format(epsilon)) --> 2.158

--- redco.privacy.gradients
local function loss(params, example)
  return (params.w:dot(example.x) - example.y):square()
end
local params = { w = torch.zeros { 2 } }
local batch = {
  x = torch.tensor({ { 1, 0 }, { 0, 10 } }, { dtype = "float32" }),
  y = torch.tensor({ 0.5, 1 }),
}
local gradients, info = redco.privacy.gradients(loss, params, batch, {
  max_grad_norm = 2, noise_multiplier = 0, expected_batch_size = 2,
})
print(gradients.w) --> tensor([-0.5000, -1.0000])
print(info.clipped:item()) --> 0.5

--- redco.privacy.noise_multiplier
print(redco.privacy.noise_multiplier {
  target_epsilon = 1, delta = 1e-5, sample_rate = 0.01, steps = 1000,
}) --> 1.42578125
