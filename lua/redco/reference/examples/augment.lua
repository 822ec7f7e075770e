--- redco.augment
local augment = redco.augment
local function loss_fn(rng, state, params, batch, is_training)
  local images = batch.images  -- floating-point, [batch, 3, 32, 32]
  if is_training then
    images = augment.random_crop(images, { padding = 4, rng = rng })
    images = augment.random_horizontal_flip(images, { rng = rng })
  end
  local logits = nn.linear(params, images:flatten(1))
  return nn.cross_entropy(logits, batch.labels)
end

--- redco.augment.random_crop
local images, rng = torch.rand { 8, 3, 32, 32 }, redco.Rng(0)
local crops = redco.augment.random_crop(images, { size = 28, rng = rng })
print(crops.shape)  --> torch.Size([8, 3, 28, 28])

--- redco.augment.random_horizontal_flip
local images, rng = torch.rand { 8, 3, 32, 32 }, redco.Rng(0)
local flipped = redco.augment.random_horizontal_flip(images, { rng = rng })
print(flipped.shape)  --> torch.Size([8, 3, 32, 32])

--- redco.augment.color_jitter
local images, rng = torch.rand { 8, 3, 32, 32 }, redco.Rng(0)
local changed = redco.augment.color_jitter(images,
  { brightness = 0.4, contrast = 0.4, saturation = 0.4, rng = rng })
print(changed.shape)  --> torch.Size([8, 3, 32, 32])

--- redco.augment.random_resized_crop
local images, rng = torch.rand { 8, 3, 32, 32 }, redco.Rng(0)
local crops = redco.augment.random_resized_crop(images, 24, { rng = rng })
print(crops.shape)  --> torch.Size([8, 3, 24, 24])

--- redco.augment.mixup
local images, rng = torch.rand { 8, 3, 32, 32 }, redco.Rng(0)
local labels = torch.randint(10, { 8 })
local mixed, probs = redco.augment.mixup(images, labels,
  { alpha = 0.2, num_classes = 10, rng = rng })
print(mixed.shape, probs.shape)
--> torch.Size([8, 3, 32, 32])  torch.Size([8, 10])
